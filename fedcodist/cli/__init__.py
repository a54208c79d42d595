"""The command line: a thin file for each verb."""
