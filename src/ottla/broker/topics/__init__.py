"""The topics of a broker: their settings, administration, logs, start-up and housekeeping."""
