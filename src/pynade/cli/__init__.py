"""The command line: every command a few lines over the library."""
