"""Connectors: databases and files on the log, with real servers and killed processes."""
