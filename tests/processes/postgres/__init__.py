"""A PostgreSQL server whose commits wait for the log is destroyed with its disk, restored from the log, and
compared."""
