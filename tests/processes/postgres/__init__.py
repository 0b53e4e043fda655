"""A PostgreSQL whose commits wait for the log, killed with its disk; restored from the log, and compared."""
