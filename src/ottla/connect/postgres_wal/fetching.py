"""One file for a server that recovers: a segment of WAL, or the history of a timeline."""

from __future__ import annotations

from pathlib import Path

from ottla.connect.postgres_wal.failures import RefusedError
from ottla.connect.postgres_wal.log_port import ReadableLog
from ottla.connect.postgres_wal.log_search import last_entry
from ottla.connect.postgres_wal.positions import segment_of_name, timeline_of_history_name
from ottla.connect.postgres_wal.segments import history_file, write_segment


async def fetch_file(
    log: ReadableLog, name: str, path: Path, system_id: int, segment_bytes: int, *, up_to_gap: bool
) -> bool:
    """False, and no file, if the log does not have it. Raises PostgresError for whatever is not that."""
    last = await last_entry(log)
    if last is None or last.entry.system_id != system_id:
        raise RefusedError("this log does not hold the WAL of this database")
    timeline = timeline_of_history_name(name)
    if timeline is not None:
        history = await history_file(log, timeline)
        if history is not None:
            path.write_bytes(history)
        return history is not None
    segment = segment_of_name(name, segment_bytes)
    if segment is None:
        return False  # the server also asks for files that only archives have, such as NAME.backup
    with path.open("wb") as out:
        found = await write_segment(log, segment, out, up_to_gap=up_to_gap)
    if not found:
        path.unlink()
    return found
