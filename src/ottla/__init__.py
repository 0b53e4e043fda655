"""Ottla: a distributed write-ahead log that speaks the Kafka protocol."""

__version__ = "0.1.0"
