"""SQLite databases on the log: their transactions, page by page, and files made of them. docs/sqlite.md says more.

`wait_shipped(database)` lets a program wait, after a commit, until the log has it.
"""

from ottla.connect.sqlite.shipped import NotShippedError, wait_shipped

__all__ = ["NotShippedError", "wait_shipped"]
