"""The topics of a broker: their catalog, their logs, start-up and housekeeping."""
