"""Stores a PostgreSQL server's WAL in an Ottla log: synchronous commits, backups, and point-in-time recovery.

`receiver` is a synchronous standby that stores WAL instead of applying it. `base_backup` and `backup_store` make and
keep copies of the data directory. `restore` restores such a copy, and `segments` gives the server the WAL that follows
it.
"""
