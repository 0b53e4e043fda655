"""Connectors against real databases and brokers, killed in the middle."""
