"""Splits runs of similar log entries: the pure Python twin of `_entry_runs.pyx`, its test oracle and its fallback."""

from __future__ import annotations

from ottla.recovery.entries import CHECKSUM_FLAG, HEADER


def split_run_plain(data: list[bytes], begin: int, keys: list[bytes], payloads: list[bytes]) -> int:
    """Splits consecutive entries from `begin` on that belong to no transaction and match the first in kind and table.

    Appends their keys and payloads to the lists and returns the index after the run. The run ends at an entry that does
    not match or is damaged, and at an entry with a checksum, which the caller has to verify.
    """
    if not 0 <= begin < len(data) or len(data[begin]) < HEADER.size or data[begin][0] & CHECKSUM_FLAG:
        return begin
    first = data[begin][:2]
    key_at = HEADER.size + first[1]
    table = data[begin][HEADER.size : key_at]
    for index in range(begin, len(data)):
        entry = data[index]
        if len(entry) < key_at or entry[:2] != first or entry[HEADER.size : key_at] != table:
            return index
        _, _, key_bytes, transaction = HEADER.unpack_from(entry)
        payload_at = key_at + key_bytes
        if transaction or payload_at > len(entry):
            return index
        keys.append(entry[key_at:payload_at])
        payloads.append(entry[payload_at:])
    return len(data)


try:
    from ottla.recovery._entry_runs import split_run
except ImportError:  # no compiled extension
    split_run = split_run_plain

__all__ = ["split_run", "split_run_plain"]
