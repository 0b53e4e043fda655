"""Arbitrary damage to a segment's bytes: a reader gets a batch as it was appended, or an error. Never another batch or
offset, never nothing, and never an error for undamaged batches (unless they lie between two damaged ones, where their
offsets cannot be verified)."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.protocol.model.errors import ErrorCode
from ottla.protocol.records.batch import read_header
from tests.support.sim_logs import LogBench

RECORDS = 30
LEADER_EPOCH = range(12, 16)
"""Not covered by any checksum and not known otherwise: damage there is not detected."""


@st.composite
def damages(draw: st.DrawFn) -> list[tuple[int, bytes]]:
    """Positions, in thousandths of the segment, and the bytes written there."""
    return draw(
        st.lists(
            st.tuples(st.integers(0, 999), st.binary(min_size=1, max_size=200)),
            min_size=1,
            max_size=3,
        )
    )


@settings(max_examples=60)
@given(damages(), st.sampled_from(["disk", "cache"]), st.booleans(), st.booleans(), st.booleans())
def test_damage_is_seen_where_it_is(
    places: list[tuple[int, bytes]], durability: str, restarts: bool, has_index: bool, is_cold: bool
) -> None:
    bench = LogBench(durability, settings={"segment_bytes": "100000"})
    batches = bench.fill(batches=RECORDS)
    bench.flush()
    log = bench.log()
    path = log.segments[0].path
    file = bench.disk.state.tree.file(path)
    before = bytes(file.current)
    for share, data in places:
        at = share * len(before) // 1000
        data = data[: len(before) - at]
        for image in (file.current, file.durable):
            image[at : at + len(data)] = data
    after = bytes(file.current)
    bench.shared.tail.forget(log.writer)
    if not has_index:
        bench.disk.files.remove(log.segments[0].index_path)
    if restarts:
        bench.restart("all")
    if is_cold:
        bench.disk.drop_page_cache()

    assert (bench.log().start_offset, bench.log().end_offset) == (0, RECORDS)
    damaged = damaged_batches(batches, before, after)
    for number, batch in enumerate(batches):
        got = bench.read(number)
        if number in damaged or ({number - 1, number + 1} <= damaged and got == ErrorCode.corrupt_message):
            assert got == ErrorCode.corrupt_message, number
        else:
            assert isinstance(got, list), number
            assert got[0][16:] == batch[16:]
            assert read_header(got[0]).base_offset == number
    more = bench.fill(batches=2)
    assert [bench.read(RECORDS), bench.read(RECORDS + 1)] == [[more[0]], [more[1]]]


def damaged_batches(batches: list[bytes], before: bytes, after: bytes) -> set[int]:
    found: set[int] = set()
    position = 0
    for number, batch in enumerate(batches):
        for at in range(len(batch)):
            if at not in LEADER_EPOCH and before[position + at] != after[position + at]:
                found.add(number)
        position += len(batch)
    return found
