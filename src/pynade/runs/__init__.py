"""Runs, figures and the demo: what the command line does, as functions."""
