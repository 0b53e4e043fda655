"""Writes recovery.signal and the settings with which a restored directory recovers from the log when it is started.

The command that fetches WAL exits with one of three codes. 0: the file is there. 1: the log has no more, which the
server takes for the end of recovery. 255, for everything else, stops the server: a broker that does not respond must
never look like the end of the WAL, because the server would then open a database that lacks acknowledged transactions.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.connect.postgres_wal import restore_client
from ottla.connect.postgres_wal import wal_keep_size as kept_wal
from ottla.connect.postgres_wal.positions import TimelineId
from ottla.connect.postgres_wal.restore_client import BOOT_ID, NOT_IN_LOG, READY
from ottla.connect.postgres_wal.slot_bound import parse_size

if TYPE_CHECKING:  # imports are slow, and a recovering server starts the command for one file after another
    from ottla.connect.postgres_wal.backup_store import Backup

_EXIT = f"code=$?; [ $code -eq 0 ] && exit 0; [ $code -eq {NOT_IN_LOG} ] && exit 1; exit 255"
AUTO_CONF = "postgresql.auto.conf"
_OURS = ("restore_command", "recovery_target", "recovery_end_command", "archive_cleanup_command", "primary_")
MINIMAL_HBA = """# Written by `ottla restore postgres`: the backup had no pg_hba.conf.
local  all          all                 peer
local  replication  all                 peer
host   all          all  127.0.0.1/32   scram-sha-256
host   all          all  ::1/128        scram-sha-256
"""


def restore_command(fetch: Sequence[str]) -> str:
    """Returns a shell command with the server's %f and %p.

    `fetch` is a command that takes the name and the path of a file as its last arguments.
    """
    return f'{_quoted(fetch)} %f "%p"; {_EXIT}'


def served_restore_command(server: Sequence[str]) -> str:
    """Returns a shell command that uses the restore server, which the command `server` starts.

    A segment that is ready only needs a rename; for any other file, the client asks the server. The client starts in 20
    ms (`-S` skips site-packages).
    """
    ready = f'read -r boot 2>/dev/null <{BOOT_ID}; mv -f "{READY}$boot/%f" "%p" 2>/dev/null && exit 0'
    client = [sys.executable, "-I", "-S", restore_client.__file__]
    return f'{ready}; {_quoted(client)} %f "%p" -- {_quoted(server)}; {_EXIT}'


def _quoted(words: Sequence[str]) -> str:
    return " ".join(shlex.quote(word.replace("%", "%%")) for word in words)


def write_recovery(
    directory: Path,
    backup: Backup,
    *,
    server: Sequence[str],
    timeline: TimelineId,
    target: Mapping[str, str],
    takes_over: bool,
) -> list[str]:
    """Writes the recovery files. Returns notes for the operator about differences from the server that was backed up.

    A server that takes over continues the log, and commits wait for it. Any other server is a copy for inspection,
    which commits by itself.
    """
    settings = {
        "restore_command": served_restore_command(server),
        "recovery_target_timeline": str(timeline),
        **target,
    }
    notes = _write_missing_files(directory, backup)
    if takes_over:
        kept, note = _wal_for_the_connector(directory / AUTO_CONF, backup)
        settings |= kept
        notes.append(note)
    else:
        settings["synchronous_standby_names"] = ""
    _write_settings(directory / AUTO_CONF, settings)
    if backup.history:
        (directory / "pg_wal" / f"{backup.timeline:08X}.history").write_text(backup.history)
    (directory / "recovery.signal").write_text("")
    return notes


def _wal_for_the_connector(auto_conf: Path, backup: Backup) -> tuple[dict[str, str], str]:
    """Makes the server keep WAL. It has no slot before its connector starts, so any checkpoint could remove WAL that
    the connector needs."""
    before_bytes = parse_size(backup.settings.get(kept_wal.SETTING, "0")) or 0
    settings = kept_wal.settings_of_restored(_text_of(auto_conf), before_bytes)
    kept_bytes = kept_wal.KEPT_BYTES if settings else before_bytes
    note = (
        f"the server keeps {kept_bytes >> 20:,} MB of WAL (wal_keep_size) until `ottla connect postgres-wal` streams it"
    )
    return settings, f"{note}, which then resets the setting" if settings else note


def _text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _write_settings(path: Path, settings: Mapping[str, str]) -> None:
    """Writes to the configuration file that is read last, and removes the settings of an earlier recovery from it."""
    there = _text_of(path).splitlines()
    dropped = (*_OURS, kept_wal.BEFORE, *settings)
    kept = [line for line in there if not line.strip().startswith(dropped)]
    added = [f"{name} = '{_escaped(value)}'" for name, value in settings.items()]
    path.write_text("\n".join([*kept, *added, ""]), encoding="utf-8")
    os.chmod(path, 0o600)


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("'", "''")


def _write_missing_files(directory: Path, backup: Backup) -> list[str]:
    """Writes missing configuration files: Debian keeps them outside the data directory, where a base backup does not
    see them."""
    notes = []
    conf = directory / "postgresql.conf"
    if not conf.exists():
        lines = ["# Written by `ottla restore postgres`: the backup had no postgresql.conf."]
        lines += [f"{name} = {value}" for name, value in backup.settings.items()]
        conf.write_text("\n".join([*lines, ""]), encoding="utf-8")
        notes.append(f"the backup had no postgresql.conf (Debian keeps it elsewhere): wrote a small one, {conf}")
    hba = directory / "pg_hba.conf"
    if not hba.exists():
        hba.write_text(MINIMAL_HBA, encoding="utf-8")
        notes.append(f"the backup had no pg_hba.conf: wrote one for local logins, {hba}")
    return notes
