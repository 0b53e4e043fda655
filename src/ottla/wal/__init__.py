"""A write-ahead log, as a program uses it: append, read, follow, trim, fence.

    async with await Log.open("127.0.0.1:9192", "orders-wal", create=LogSettings(replicas=3), fence=True) as log:
        offset = await log.append(b"...")
        async for entry in log.read(0):
            ...

`SyncLog` is the same for threads. Both reach a broker through its append stream (gRPC) alone; docs/wal.md says more.
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
from ottla.wal.values import Entry, LogSettings, Tail

__all__ = [
    "Entry",
    "FencedError",
    "InvalidRequestError",
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
