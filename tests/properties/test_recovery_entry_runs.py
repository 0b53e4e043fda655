"""Runs of log entries: the compiled splitter equals its plain twin for arbitrary bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.recovery.entries import Kind, encode
from ottla.recovery.entry_runs import split_run_plain

compiled = pytest.importorskip("ottla.recovery._entry_runs")

ENTRIES = st.builds(
    encode,
    st.sampled_from([Kind.PUT, Kind.PUT, Kind.DELETE, Kind.COMMIT]),
    st.sampled_from(["", "", "t", "u", "žluť"]),
    st.binary(max_size=4),
    st.binary(max_size=4),
    transaction=st.sampled_from([0, 0, 0, 1, 1 << 63]),
    checksum=st.sampled_from([False, False, False, True]),
)


@given(st.lists(st.one_of(ENTRIES, ENTRIES, st.binary(max_size=20)), max_size=8), st.integers(-1, 9))
def test_the_compiled_splitter_does_what_its_twin_does(data: list[bytes], begin: int) -> None:
    found: tuple[list[bytes], list[bytes]] = ([], [])
    expected: tuple[list[bytes], list[bytes]] = ([], [])
    assert compiled.split_run(data, begin, *found) == split_run_plain(data, begin, *expected)
    assert found == expected
    assert len(expected[0]) == len(expected[1])


def test_a_run_ends_at_another_table_kind_or_transaction_and_at_a_checksum() -> None:
    run = [encode(Kind.PUT, "t", b"k%d" % number, b"v%d" % number) for number in range(3)]
    others = [
        encode(Kind.PUT, "u", b"k", b"v"),
        encode(Kind.DELETE, "t", b"k"),
        encode(Kind.PUT, "t", b"k", b"v", transaction=1),
        encode(Kind.PUT, "t", b"k", b"v", checksum=True),
        run[0][:13],
        b"",
    ]
    for other in others:
        keys: list[bytes] = []
        images: list[bytes] = []
        assert compiled.split_run([*run, other, *run], 0, keys, images) == 3
        assert (keys, images) == ([b"k0", b"k1", b"k2"], [b"v0", b"v1", b"v2"])
