"""SQLite's page checksums and entries: the compiled twin, incremental checksums, and damage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.connect.sqlite.checksum import wal_checksum, wal_checksum_in_python
from ottla.connect.sqlite.entries import DamagedEntryError, Kind, Part, decode, decode_pages, encode
from ottla.connect.sqlite.page_hashes import PageHashes
from ottla.connect.sqlite.wal_format import WalPosition

u32 = st.integers(0, 2**32 - 1)
PAGE_BYTES = 512
page = st.binary(min_size=PAGE_BYTES, max_size=PAGE_BYTES) | st.just(bytes(PAGE_BYTES))


@given(st.binary(max_size=512).map(lambda data: data[: len(data) // 8 * 8]), st.booleans(), u32, u32)
def test_the_compiled_checksum_is_the_plain_one(data: bytes, big_endian: bool, first: int, second: int) -> None:
    expected = wal_checksum_in_python(data, big_endian, first, second)
    assert wal_checksum(memoryview(data), big_endian, first, second) == expected


@given(st.lists(st.tuples(st.lists(st.tuples(st.integers(1, 12), page), max_size=4), st.integers(1, 12)), max_size=8))
def test_what_is_kept_page_by_page_is_what_the_whole_has(history: list[tuple[list[tuple[int, bytes]], int]]) -> None:
    kept, whole = PageHashes(), dict[int, bytes]()
    for written, size in history:
        for number, content in written:
            kept.put(number, content)
            whole[number] = content
        kept.resize(size)
        whole = {number: content for number, content in whole.items() if number <= size}
    anew = PageHashes()
    for number, content in whole.items():
        anew.put(number, content)
    assert kept.total == anew.total


def test_pages_that_changed_places_are_another_database() -> None:
    one, other = PageHashes(), PageHashes()
    for number, content in ((1, b"a"), (2, b"b")):
        one.put(number, content * PAGE_BYTES)
        other.put(3 - number, content * PAGE_BYTES)
    assert one.total != other.total


parts = st.builds(
    Part,
    kind=st.sampled_from(Kind),
    number=u32,
    is_last=st.booleans(),
    generation=st.binary(min_size=16, max_size=16),
    transaction=st.integers(0, 2**63),
    time_ms=st.integers(0, 2**50),
    previous=st.binary(min_size=16, max_size=16),
    snapshot_offset=st.integers(-1, 2**62),
    page_bytes=st.just(PAGE_BYTES),
    database_pages=u32,
    place=st.builds(WalPosition, st.tuples(u32, u32), u32, st.tuples(u32, u32)),
    state=st.none() | st.integers(0, 2**64 - 1),
)


@given(parts, st.lists(st.tuples(u32, page), max_size=5))
def test_an_entry_is_read_as_it_was_written(part: Part, pages: list[tuple[int, bytes]]) -> None:
    entry = encode(part, pages)
    assert decode(entry) == part
    assert decode_pages(entry) == pages


@given(parts, st.lists(st.tuples(u32, page), max_size=3), st.data())
def test_a_changed_or_cut_entry_is_refused(part: Part, pages: list[tuple[int, bytes]], data: st.DataObject) -> None:
    entry = bytearray(encode(part, pages))
    at = data.draw(st.integers(0, len(entry) - 1))
    if data.draw(st.booleans()):
        entry[at] ^= data.draw(st.integers(1, 255))
    else:
        del entry[at:]
    with pytest.raises(DamagedEntryError):
        decode(bytes(entry))
