"""A PostgreSQL server whose commits wait for the log is destroyed with its disk and restored from the log."""
