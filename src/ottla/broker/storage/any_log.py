"""The type of a log of any durability class."""

from __future__ import annotations

from ottla.broker.storage.file_log import FileLog
from ottla.broker.storage.memory_log import MemoryLog

AnyLog = FileLog | MemoryLog
