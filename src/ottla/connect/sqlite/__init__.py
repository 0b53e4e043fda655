"""Replicates SQLite databases to a log, page by page and transaction by transaction, and restores them. See
docs/guides/sqlite.md.

A program calls `wait_shipped(database)` after a commit to wait until the log has it.
"""

from ottla.connect.sqlite.shipping_progress import NotShippedError, wait_shipped

__all__ = ["NotShippedError", "wait_shipped"]
