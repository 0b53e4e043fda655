"""Keys go to the same partitions as with the Java client; records without a key are batched together."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.client.producer import _murmur2 as compiled
from ottla.client.producer import murmur2 as plain
from ottla.client.producer.partitioner import StickyChoice, murmur2_partitioner

# The signed values of org.apache.kafka.common.utils.Utils.murmur2.
JAVA = {
    b"0": 971027396,
    b"1": -1993445489,
    b"12": 126087238,
    b"123": -267702483,
    b"1234": -1614185708,
    b"12345": -1188365604,
    b"128": -326012175,
    b"16384": -325739742,
}


@pytest.mark.parametrize(("key", "hashed"), JAVA.items())
def test_the_hash_is_javas(key: bytes, hashed: int) -> None:
    assert plain.murmur2(key) == hashed & 0xFFFFFFFF
    assert compiled.murmur2(key) == hashed & 0xFFFFFFFF


@given(st.binary(max_size=64))
def test_compiled_and_plain_agree(key: bytes) -> None:
    assert compiled.murmur2(key) == plain.murmur2(key)


@given(st.lists(st.binary(max_size=12)), st.integers(min_value=1, max_value=50))
def test_a_column_of_keys_is_placed_as_its_keys_are(keys: list[bytes], partition_count: int) -> None:
    ends = array("q", [0])
    for key in keys:
        ends.append(ends[-1] + len(key))
    data = memoryview(b"".join(keys))
    expected = [murmur2_partitioner(key, partition_count) for key in keys]
    for module in (compiled, plain):
        into = array("i", bytes(4 * len(keys)))
        module.partition_column(data, memoryview(ends), partition_count, memoryview(into))
        assert list(into) == expected


@pytest.mark.parametrize("ends", [[0, 5], [0, -1], [3, 2]])
def test_keys_outside_of_their_buffer_are_refused(ends: list[int]) -> None:
    with pytest.raises(ValueError, match="outside"):
        compiled.partition_column(b"abc", memoryview(array("q", ends)), 3, memoryview(array("i", [0])))


def test_no_key_leaves_the_choice_open() -> None:
    assert murmur2_partitioner(None, 3) is None
    assert murmur2_partitioner(b"", 3) is not None


def test_the_choice_sticks_until_a_batch_is_full() -> None:
    choice = StickyChoice(seed=1)
    available = (0, 1, 2)
    first = choice.current("t", available)
    assert {choice.current("t", available) for _ in range(50)} == {first}
    choice.move_on("t", available)
    assert choice.current("t", available) != first


def test_the_choice_moves_when_its_partition_has_no_leader_any_more() -> None:
    choice = StickyChoice(seed=1)
    first = choice.current("t", (0, 1, 2))
    others = tuple({0, 1, 2} - {first})
    assert choice.current("t", others) in others


def test_one_partition_is_enough() -> None:
    choice = StickyChoice()
    choice.move_on("t", (4,))
    assert choice.current("t", (4,)) == 4
