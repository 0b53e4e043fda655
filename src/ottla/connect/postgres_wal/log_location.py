"""Opens the log of a database, creates it if necessary, and translates its errors."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from ottla.connect.log_ports import ReadableLog
from ottla.connect.postgres_wal.failures import (
    InvalidSettingsError,
    LogChangedError,
    PostgresError,
    RefusedError,
    TakenOverError,
    UnreachableError,
)
from ottla.wal import (
    FencedError,
    Log,
    LogClosedError,
    LogNotFoundError,
    LogSettings,
    UnavailableError,
    UnexpectedEndError,
    UnknownOutcomeError,
    WalError,
)

DURABILITIES = ("disk", "cache", "memory")


@dataclass(frozen=True, slots=True)
class LogLocation:
    """The servers and the name of a log."""

    servers: str
    name: str

    @asynccontextmanager
    async def open(self, *, fence: bool = False, create: LogSettings | None = None) -> AsyncGenerator[Log, None]:
        """Opens the log, with `fence` as its single writer. Raises errors of the log, also those in the body, as
        PostgresError."""
        try:
            log = await Log.open(self.servers, self.name, create=create, fence=fence)
            try:
                yield log
            finally:
                await log.close()
        except WalError as failure:
            raise self._as_ours(failure) from failure

    @asynccontextmanager
    async def open_to_read(
        self, archive: str | None, news: Callable[[str], None] = lambda sentence: None, *, without_log: bool = False
    ) -> AsyncGenerator[ReadableLog, None]:
        """Opens the log for reading.

        With an archive, records that retention has deleted from the log are read from the archive. With `without_log`,
        everything is.
        """
        if archive is None:
            async with self.open() as log:
                yield log
            return
        from ottla.connect.archived_log import ArchivedLog, ArchiveError, ArchiveOnlyLog

        try:
            if without_log:
                alone = await ArchiveOnlyLog.of(archive, self.name)
                _tell(alone.part.note, news)
                yield alone
                return
            async with self.open() as log:
                both = await ArchivedLog.of(log, archive, self.name)
                _tell(both.part.note, news)
                yield both
        except ArchiveError as failure:
            raise RefusedError(str(failure)) from failure

    def _as_ours(self, failure: WalError) -> PostgresError:
        match failure:
            case FencedError():
                return TakenOverError(
                    f"another connector has taken over the log {self.name!r}. One is enough; for a second database, "
                    "choose another log with --log"
                )
            case LogNotFoundError():
                return RefusedError(
                    f"there is no log {self.name!r} at {self.servers}. `ottla connect postgres-wal` creates "
                    "it; or choose another one with --log"
                )
            case UnexpectedEndError():
                return LogChangedError("another writer wrote to the log")
            case UnavailableError() | UnknownOutcomeError() | LogClosedError():
                return UnreachableError(f"the log at {self.servers} does not respond: {failure}")
            case _:
                return PostgresError(f"the log {self.name!r} at {self.servers}: {failure}")


def _tell(note: str | None, news: Callable[[str], None]) -> None:
    if note is not None:
        news(note)


def settings_of_new_log(replicas: int | None, durability: str | None) -> LogSettings:
    """Returns settings without retention: only `ottla backup postgres --keep` removes WAL. Raises
    InvalidSettingsError."""
    if durability not in (None, *DURABILITIES):
        raise InvalidSettingsError(
            f"there is no durability {durability!r}; it is {', '.join(DURABILITIES[:-1])} or {DURABILITIES[-1]}"
        )
    if replicas is not None and replicas < 1:
        raise InvalidSettingsError(f"a log needs at least 1 replica, not {replicas}")
    return LogSettings(replicas=replicas, durability=durability, retention_ms=-1, configs={"retention.bytes": "-1"})
