"""Connectors with real databases and brokers, killed while they work."""
