"""Decides where to resume by comparing the end of the log with the database.

| the WAL still has the position that the log names   | ship the transactions after it; the history has no hole |
| it does not, but all pages are as the log has them  | nothing has changed since                               |
| neither                                             | start a new generation: a snapshot with a new number    |
"""

from __future__ import annotations

from dataclasses import dataclass

from ottla.connect.sqlite.entries import Part
from ottla.connect.sqlite.failures import damaged_wal
from ottla.connect.sqlite.image import Image
from ottla.connect.sqlite.page_hashes import PageHashes
from ottla.connect.sqlite.source import Source
from ottla.connect.sqlite.wal_file import Bytes, continues, copy_of
from ottla.connect.sqlite.wal_format import DamagedWalError, WalPosition
from ottla.connect.sqlite.wal_index import WalState

COPY_BYTES_MAX = 256 << 20


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where to resume."""

    image: Image
    """The database now."""
    hashes: PageHashes
    """The hashes of the image."""
    state: WalState
    place: WalPosition
    """The log has everything before this position, and nothing after it."""
    wal: Bytes
    """Where to read the frames between `place` and `state`."""
    hole: str | None
    """Why the history has a hole here; None if it has none."""


def attach(source: Source, last: Part | None) -> ResumePoint:
    """Moves the guard to the last commit and compares the database with `last`, the last complete item of the log."""
    with source.writers_kept_out():
        state = source.guard_now()
        try:
            wal = None if last is None else _rest_of_wal(source, last, state)
        except DamagedWalError as damage:
            raise damaged_wal(source.path, str(damage)) from damage
    image = source.image(state)
    hashes = image.hashes()
    if last is None:
        return ResumePoint(image, hashes, state, image.place, source.wal, "the log is new")
    is_same = last.page_bytes == image.page_bytes and last.state == hashes.total
    if wal is not None and last.place.frame < state.frames:
        return ResumePoint(image, hashes, state, last.place, wal, None)
    if is_same or (wal is not None and last.state is None):
        return ResumePoint(image, hashes, state, image.place, source.wal, None)
    return ResumePoint(image, hashes, state, image.place, source.wal, _why(last, wal, state))


def _rest_of_wal(source: Source, last: Part, state: WalState) -> Bytes | None:
    """Returns where to read the frames after the log's last transaction; None if they are not available.

    If the WAL is fully checkpointed, the next writer overwrites it, so a copy is made while writers are locked out.
    """
    if last.page_bytes != state.page_bytes or not continues(source.wal, last.place, state):
        return None
    if not source.may_begin_anew or last.place.frame == state.frames:
        return source.wal
    if (state.frames - last.place.frame) * state.page_bytes > COPY_BYTES_MAX:
        return None
    return copy_of(source.wal, last.place, state)


def _why(last: Part, wal: Bytes | None, state: WalState) -> str:
    if wal is not None:
        return "the log has other pages than the database, which was changed without its WAL"
    if last.place.salts == state.salts and last.place.frame > state.frames:
        return f"the database was set back: its WAL has {state.frames} frames, but the log has {last.place.frame}"
    return "the database was changed while it was not followed, and its WAL was restarted"
