"""Packs the entry headers of many batches at once: compiled (`_entries.pyx`) if available, otherwise in plain
Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ottla.broker.storage.journal.format import ENTRY_BYTES, Mutation, pack_entry_into
from ottla.protocol.records.batch import read_header

_APPEND = int(Mutation.APPEND)

PackAppends = Callable[[bytearray, int, bytes, Sequence[memoryview]], None]


def pack_appends_plainly(into: bytearray, at: int, packed_key: bytes, batches: Sequence[memoryview]) -> None:
    """The pure Python version. The batches belong to one log and carry their offset and epoch."""
    if at < 0 or at + len(batches) * ENTRY_BYTES > len(into):
        raise ValueError("the entries do not fit")
    for batch in batches:
        header = read_header(batch)
        pack_entry_into(
            into, at, _APPEND, packed_key,
            header.base_offset, header.next_offset, header.leader_epoch, header.crc, len(batch),
        )  # fmt: skip
        at += ENTRY_BYTES


def _best() -> PackAppends:
    try:
        from ottla.broker.storage.journal._entries import pack_appends_into
    except ImportError:
        return pack_appends_plainly
    return pack_appends_into


pack_appends_into: PackAppends = _best()
