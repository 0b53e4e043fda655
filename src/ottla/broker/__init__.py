"""Drives the machines over the logs: topics, partitions, waits, start-up and housekeeping."""
