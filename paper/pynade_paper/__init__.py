"""The reproduction of the paper: its data sets, protocols, records, tables and figures."""
