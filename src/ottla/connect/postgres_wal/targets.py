"""The recovery target (a time, an LSN or a transaction id), and the backup from which to reach it. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

from ottla.connect.postgres_wal.backup_store import Backup
from ottla.connect.postgres_wal.failures import RefusedError
from ottla.connect.postgres_wal.positions import Lsn, lsn_text, parse_lsn, utc
from ottla.connect.postgres_wal.timelines import History

_XID_MODULUS = 1 << 32


@dataclass(frozen=True, slots=True)
class AtTime:
    """A recovery target: a time, in microseconds since the Unix epoch."""

    unix_us: int

    def __str__(self) -> str:
        return f"{utc(self.unix_us):%Y-%m-%d %H:%M:%S.%f} UTC"


@dataclass(frozen=True, slots=True)
class AtLsn:
    """A recovery target: a position in the WAL."""

    lsn: Lsn

    def __str__(self) -> str:
        return lsn_text(self.lsn)


@dataclass(frozen=True, slots=True)
class AtXid:
    """A recovery target: the commit of a transaction."""

    xid: int

    def __str__(self) -> str:
        return f"transaction {self.xid}"


Target = AtTime | AtLsn | AtXid


def parse_target(text: str) -> Target:
    """Parses `16/B374D848`, `123456`, or an ISO 8601 time, by default in the local time zone. Raises ValueError."""
    text = text.strip()
    if "/" in text:
        return AtLsn(parse_lsn(text))
    if text.isdigit():
        return AtXid(int(text))
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is neither a time (2026-01-31T12:00:00+01:00), nor an LSN (16/B374D848), nor a transaction id"
        ) from None
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return AtTime((moment.astimezone(datetime.UTC) - epoch) // datetime.timedelta(microseconds=1))


def recovery_settings(target: Target | None, *, inclusive: bool) -> dict[str, str]:
    """Returns the target as PostgreSQL settings."""
    if target is None:
        return {}
    value: dict[str, str]
    if isinstance(target, AtTime):
        value = {"recovery_target_time": f"{utc(target.unix_us):%Y-%m-%d %H:%M:%S.%f}+00"}
    elif isinstance(target, AtLsn):
        value = {"recovery_target_lsn": lsn_text(target.lsn)}
    else:
        value = {"recovery_target_xid": str(target.xid)}
    return {
        **value,
        "recovery_target_inclusive": "on" if inclusive else "off",
        "recovery_target_action": "promote",
    }


def choose_backup(backups: Sequence[Backup], target: Target | None, history: History) -> Backup:
    """Returns the newest backup from which this history reaches the target, because it needs the least WAL.

    Raises RefusedError if there is none.
    """
    usable = [each for each in backups if _leads_to(each, history)]
    if not usable:
        raise RefusedError(
            f"no backup leads to timeline {history.timeline} within the log. `ottla backup list` shows the "
            "backups; restore one of another timeline with --timeline, and one from before the start of the "
            "log with --archive DIRECTORY"
        )
    early = [each for each in usable if is_before(each, target)]
    if not early:
        raise RefusedError(
            f"the oldest backup was taken after {target} (it ended at {lsn_text(usable[0].end)}, "
            f"{utc(usable[0].ended_unix_us):%Y-%m-%d %H:%M:%S} UTC), so earlier states cannot be restored"
        )
    return early[-1]


def _leads_to(backup: Backup, history: History) -> bool:
    stretch = history.stretch_of(backup.timeline)
    return stretch is not None and (stretch.end is None or backup.end <= stretch.end)


def is_before(backup: Backup, target: Target | None) -> bool:
    """Returns whether the backup was complete at the target."""
    if target is None:
        return True
    if isinstance(target, AtTime):
        return backup.ended_unix_us <= target.unix_us
    if isinstance(target, AtLsn):
        return backup.end <= target.lsn
    # Transaction ids wrap around, so they are compared modulo 2^32, as PostgreSQL does.
    return (target.xid - backup.next_xid) % _XID_MODULUS < _XID_MODULUS // 2
