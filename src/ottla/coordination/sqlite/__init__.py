"""Coordination of brokers that run on one machine: one SQLite file in a directory that they share.

<directory>/coordination.db    entries, their history, and the leases
<directory>/leases/            one file for each lease: its owner holds a lock on it and writes its deadline into it
<directory>/watchers/          one pipe for each client: others write to it after a commit, to wake its watches
"""

from ottla.coordination.sqlite.adapter import SqliteCoordination
from ottla.coordination.sqlite.history import History

__all__ = ["History", "SqliteCoordination"]
