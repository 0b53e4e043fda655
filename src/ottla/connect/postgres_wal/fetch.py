"""Fetches one file for a recovering server: a WAL segment, or the history file of a timeline.

    python -m ottla.connect.postgres_wal.fetch --wal ... --log ... --system-id ... --segment-bytes ... %f %p

`restore_server` calls `fetch_file`. The command itself serves data directories that were restored before the restore
server existed. Exit codes: 0, the file is at %p; 44, the log does not have it; any other, it is not known whether the
log has it (see `recovery_files`).
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from ottla.connect.log_ports import ReadableLog
from ottla.connect.postgres_wal.failures import PostgresError, RefusedError
from ottla.connect.postgres_wal.log_location import LogLocation
from ottla.connect.postgres_wal.log_search import last_entry
from ottla.connect.postgres_wal.positions import segment_of_name, timeline_of_history_name
from ottla.connect.postgres_wal.restore_client import NOT_IN_LOG
from ottla.connect.postgres_wal.segments import history_file, write_segment

FAILED = 1


async def fetch_file(
    log: ReadableLog, name: str, path: Path, system_id: int, segment_bytes: int, *, up_to_gap: bool
) -> bool:
    """Writes a file to `path`. Returns False, and leaves no file, if the log does not have it.

    Raises PostgresError for every other failure.
    """
    await check_database(log, system_id)
    timeline = timeline_of_history_name(name)
    if timeline is not None:
        history = await history_file(log, timeline)
        if history is not None:
            path.write_bytes(history)
        return history is not None
    segment = segment_of_name(name, segment_bytes)
    if segment is None:
        return False  # the server also requests files that only archives have, such as NAME.backup
    with path.open("wb") as out:
        found = await write_segment(log, segment, out, up_to_gap=up_to_gap)
    if not found:
        path.unlink()
    return found


async def check_database(log: ReadableLog, system_id: int) -> None:
    """Raises RefusedError if the log is empty or belongs to another database."""
    last = await last_entry(log)
    if last is None or last.entry.system_id != system_id:
        raise RefusedError("this log does not contain the WAL of this database")


def add_log_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that identify the log and the database."""
    parser.add_argument("--wal", required=True)
    parser.add_argument("--log", required=True)
    parser.add_argument("--system-id", type=int, required=True)
    parser.add_argument("--segment-bytes", type=int, required=True)
    parser.add_argument("--archive")
    parser.add_argument("--without-log", action="store_true")
    parser.add_argument("--up-to-gap", action="store_true")


def open_log(options: argparse.Namespace) -> AbstractAsyncContextManager[ReadableLog]:
    """Opens the log, its archive, or both, as the options of `add_log_options` say."""
    place = LogLocation(options.wal, options.log)
    return place.open_to_read(options.archive, without_log=options.without_log)


def main() -> int:
    """Runs the program. Returns its exit code: 0, NOT_IN_LOG if the log lacks the file, or FAILED."""
    parser = argparse.ArgumentParser(prog="python -m ottla.connect.postgres_wal.fetch")
    add_log_options(parser)
    parser.add_argument("name")
    parser.add_argument("path", type=Path)
    wanted = parser.parse_args()

    async def work() -> bool:
        async with open_log(wanted) as log:
            return await fetch_file(
                log, wanted.name, wanted.path, wanted.system_id, wanted.segment_bytes, up_to_gap=wanted.up_to_gap
            )

    try:
        return 0 if asyncio.run(work()) else NOT_IN_LOG
    except PostgresError as failure:
        print(f"ottla: {wanted.name}: {failure}", file=sys.stderr)
        return FAILED


if __name__ == "__main__":
    sys.exit(main())
