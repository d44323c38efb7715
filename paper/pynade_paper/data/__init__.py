"""The data sets of the paper: where they are published, how they are read and recognised."""
