"""A PostgreSQL server's write-ahead log, kept on Ottla's: commits that wait for it, backups, and restore to any moment.

`receiver` is the synchronous standby that stores instead of applying; `base_backup` and `backup_store` keep copies of
the data directory; `restore` lays one down, and `segments` gives the server the WAL that came after it.
"""
