"""Client library for write-ahead logs: append, read, follow, trim and fence.

    async with await Log.open("127.0.0.1:9192", "orders-wal", create=LogSettings(replicas=3), fence=True) as log:
        offset = await log.append(b"...")
        async for entry in log.read(0):
            ...

`SyncLog` has the same methods for threads. Both connect only to a broker's append stream (gRPC).
docs/guides/wal.md describes it.
"""

from ottla.wal.errors import (
    FencedError,
    InvalidRequestError,
    LogClosedError,
    LogNotFoundError,
    TooLargeError,
    TooMuchInFlightError,
    TrimmedError,
    UnavailableError,
    UnexpectedEndError,
    UnknownOutcomeError,
    WalError,
)
from ottla.wal.log import Log
from ottla.wal.sync_log import SyncLog
from ottla.wal.values import Entry, Limits, LogSettings, Tail

__all__ = [
    "Entry",
    "FencedError",
    "InvalidRequestError",
    "Limits",
    "Log",
    "LogClosedError",
    "LogNotFoundError",
    "LogSettings",
    "SyncLog",
    "Tail",
    "TooLargeError",
    "TooMuchInFlightError",
    "TrimmedError",
    "UnavailableError",
    "UnexpectedEndError",
    "UnknownOutcomeError",
    "WalError",
]
