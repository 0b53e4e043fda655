"""Connects the state machines to the logs: topics, partitions, waits, start-up and housekeeping."""
