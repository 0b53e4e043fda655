"""Brings a log back at start-up: recovery, replay of the journal, repair."""
