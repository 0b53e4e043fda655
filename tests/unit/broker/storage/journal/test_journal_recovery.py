"""Recovery of the journal: what counts as damage, what as a torn end, and what must never reappear."""

from __future__ import annotations

import pytest

from ottla.broker.storage.journal import JournalLimits, RecoveredJournal, recover
from ottla.broker.storage.journal.format import (
    BLOCK_HEADER_BYTES,
    ENTRY_BYTES,
    BlockHeader,
    pack_block_header_into,
    unpack_block_header,
)
from ottla.sim.clock import SimClock
from ottla.sim.disk import SimDisk
from tests.unit.broker.storage.journal.test_journal import DIRECTORY, JOURNAL_ID, Log, World, make_batch, offsets

FIRST = f"{DIRECTORY}/journal-0001"
SECOND = f"{DIRECTORY}/journal-0002"
PAYLOAD_AT = BLOCK_HEADER_BYTES + ENTRY_BYTES


def blocks_of_one(count: int, log: Log, size: int = 100) -> World:
    """Blocks of one batch, one page each."""
    world = World()
    for _ in range(count):
        world.append(log, size)
        world.run()
    return world


def places_of_damage(recovered: RecoveredJournal) -> list[tuple[str, int, int, int]]:
    return [(found.path, found.offset, found.first_sequence, found.last_sequence) for found in recovered.damage]


def test_a_directory_that_is_not_there_has_nothing() -> None:
    recovered = recover(SimDisk(SimClock()).files, DIRECTORY, JOURNAL_ID, 5)
    assert list(recovered.entries()) == []
    assert recovered.last_sequence == 5
    assert recovered.damage == ()


def test_released_blocks_do_not_come_back() -> None:
    log = Log(0)
    recovered = blocks_of_one(5, log).recover(released=3)
    assert offsets(list(recovered.entries()), log) == [3, 4]
    assert recovered.last_sequence == 5


@pytest.mark.parametrize("at", [0, 5, 30, BLOCK_HEADER_BYTES - 1])
def test_a_bad_block_header_below_a_later_block_is_damage(at: int) -> None:
    log = Log(0)
    world = blocks_of_one(5, log)
    world.disk.damage(FIRST, 2 * 4096 + at)
    recovered = world.recover()
    assert places_of_damage(recovered) == [(FIRST, 2 * 4096, 3, 3)]
    assert recovered.damage[0].keys is None
    assert offsets(list(recovered.entries()), log) == [0, 1, 3, 4]
    assert recovered.last_sequence == 5


@pytest.mark.parametrize("at", [BLOCK_HEADER_BYTES, BLOCK_HEADER_BYTES + ENTRY_BYTES - 1])
def test_a_bad_entry_header_is_damage_of_any_log(at: int) -> None:
    world = blocks_of_one(3, Log(0))
    world.disk.damage(FIRST, 4096 + at)
    recovered = world.recover()
    assert places_of_damage(recovered) == [(FIRST, 4096, 2, 2)]
    assert recovered.damage[0].keys is None


@pytest.mark.parametrize("at", [0, 8, 12, 16, 17, 21, 60, 61, 160])
def test_a_bad_payload_is_damage_of_its_log(at: int) -> None:
    world, bad, good = World(), Log(1), Log(2)
    world.append(bad)
    world.append(good)
    world.run()
    world.append(good)
    world.run()
    world.disk.damage(FIRST, BLOCK_HEADER_BYTES + 2 * ENTRY_BYTES + at)
    recovered = world.recover()
    assert places_of_damage(recovered) == [(FIRST, 0, 1, 1)]
    assert recovered.damage[0].keys == frozenset({bad.key})
    assert offsets(list(recovered.entries()), good) == [0, 1]
    assert offsets(list(recovered.entries()), bad) == []
    assert FIRST in str(recovered.damage[0])


@pytest.mark.parametrize("at", [0, BLOCK_HEADER_BYTES, PAYLOAD_AT, PAYLOAD_AT + 100])
def test_a_bad_last_block_is_the_torn_end(at: int) -> None:
    log = Log(0)
    world = blocks_of_one(4, log)
    world.disk.damage(FIRST, 3 * 4096 + at)
    recovered = world.recover()
    assert recovered.damage == ()
    assert offsets(list(recovered.entries()), log) == [0, 1, 2]
    if at == 0:
        assert recovered.torn_end is None
        assert recovered.last_sequence == 3
    else:
        assert recovered.torn_end == (FIRST, 3 * 4096, 4)
        assert recovered.last_sequence == 4, "the number was seen, so it is not given again"


def test_a_torn_group_is_dropped_as_a_whole() -> None:
    world, log = World(), Log(0)
    world.append(log)
    world.run()
    world.append(log)
    world.append(log)
    world.run()
    world.disk.damage(FIRST, 4096 + BLOCK_HEADER_BYTES + 2 * ENTRY_BYTES + 161 + 100)
    assert offsets(list(world.recover().entries()), log) == [0]


def test_several_bad_blocks_in_a_row_are_one_gap() -> None:
    world = blocks_of_one(6, Log(0))
    for block in (1, 2, 3):
        world.disk.damage(FIRST, block * 4096)
    assert places_of_damage(world.recover()) == [(FIRST, 4096, 2, 4)]


def two_files() -> World:
    """Sequences 1 to 8 in the first file, 9 to 12 in the second."""
    world = blocks_of_one(12, Log(0))
    assert [block.header.sequence for block in world.recover().blocks if block.path == SECOND] == [9, 10, 11, 12]
    return world


@pytest.mark.parametrize(
    ("bad", "place"),
    [
        ([(FIRST, 7)], (FIRST, 7 * 4096, 8, 8)),
        ([(SECOND, 0)], (SECOND, 0, 9, 9)),
        ([(FIRST, 6), (FIRST, 7), (SECOND, 0), (SECOND, 1)], (FIRST, 6 * 4096, 7, 10)),
        ([(FIRST, 0), (FIRST, 1)], (FIRST, 0, 1, 2)),
    ],
)
def test_damage_is_named_across_files(bad: list[tuple[str, int]], place: tuple[str, int, int, int]) -> None:
    world = two_files()
    for path, block in bad:
        world.disk.damage(path, block * 4096)
    assert places_of_damage(world.recover()) == [place]


def test_a_lost_file_is_damage() -> None:
    world = two_files()
    world.disk.files.remove(FIRST)
    [damage] = world.recover().damage
    assert (damage.first_sequence, damage.last_sequence) == (1, 8)


def test_a_lost_write_is_damage() -> None:
    world, log = World(), Log(0)
    world.disk.faults.lose_write(2, path="journal-0001")
    for _ in range(3):
        world.append(log)
        world.run()
    assert places_of_damage(world.recover()) == [(FIRST, 4096, 2, 2)]


def test_a_misdirected_write_is_damage() -> None:
    world, log = World(), Log(0)
    world.disk.faults.misdirect_write(2, path="journal-0001", shift_bytes=3 * 4096)
    for _ in range(3):
        world.append(log)
        world.run()
    recovered = world.recover()
    assert places_of_damage(recovered) == [(FIRST, 4096, 2, 2)]
    assert offsets(list(recovered.entries()), log) == [0, 2]


@pytest.mark.parametrize("nth", range(1, 8))
def test_what_cannot_be_read_is_damage(nth: int) -> None:
    log = Log(0)
    world = blocks_of_one(3, log)
    world.disk.faults.fail_read(nth, path=FIRST, count=2)
    recovered = world.recover()
    world.disk.faults.clear()
    if nth <= 4:
        assert recovered.damage, "also at the end: nobody knows what it held"
    found = offsets(list(recovered.entries()), log)
    assert found == sorted(found)


def test_another_journals_blocks_do_not_count() -> None:
    world = blocks_of_one(3, Log(0))
    recovered = recover(world.disk.files, DIRECTORY, bytes(16), 0)
    assert list(recovered.entries()) == []
    assert recovered.last_sequence == 0


def test_a_block_copied_to_another_place_does_not_count() -> None:
    world = blocks_of_one(3, Log(0))
    file = world.disk.files.open(FIRST)
    file.write_at(5 * 4096, [file.read_at(0, 4096)])
    recovered = world.recover()
    assert len(recovered.blocks) == 3
    assert recovered.damage == ()


def test_a_batch_that_looks_like_a_block_is_only_a_batch() -> None:
    """A client that sends the bytes of an old block, even at its position in the file, restores nothing."""
    world, log = World(JournalLimits()), Log(0)
    world.append(log, 20_000)
    world.run()
    fake = bytearray(BLOCK_HEADER_BYTES)
    pack_block_header_into(fake, BlockHeader(JOURNAL_ID, 1, 8192, 1, 99, 98, 1, 0, 4096, 0, 0))
    file = world.disk.files.open(FIRST)
    data = bytearray(file.read_at(0, 20_480))
    data[8192 : 8192 + len(fake)] = fake
    file.write_at(0, [data])
    assert [block.header.sequence for block in world.recover().blocks] == []
    assert world.recover().torn_end == (FIRST, 0, 1)


def test_another_batch_in_the_place_of_the_right_one_does_not_count() -> None:
    """A batch left over from an earlier pass, for example: valid in itself, but not the one of this entry."""
    world = blocks_of_one(2, Log(0))
    stale = make_batch(0, bytes(99) + b"!")
    world.disk.files.open(FIRST).write_at(PAYLOAD_AT, [stale])
    assert places_of_damage(world.recover()) == [(FIRST, 0, 1, 1)]


def test_lengths_that_lie_are_not_followed() -> None:
    """The header's checksum is valid, but its length exceeds the file."""
    world = blocks_of_one(1, Log(0))
    file = world.disk.files.open(FIRST)
    header = unpack_block_header(file.read_at(0, BLOCK_HEADER_BYTES))
    assert header is not None
    for lie in (
        header._replace(block_bytes=0),
        header._replace(block_bytes=4097),
        header._replace(block_bytes=0xFFFFF000),
        header._replace(entry_count=0xFFFFFFFF),
        header._replace(durable_sequence=1),
        header._replace(lap=2),
    ):
        forged = bytearray(BLOCK_HEADER_BYTES)
        pack_block_header_into(forged, lie)
        file.write_at(0, [forged])
        assert world.recover().blocks == ()


def test_garbage_instead_of_a_journal() -> None:
    world = blocks_of_one(1, Log(0))
    file = world.disk.files.open(FIRST)
    file.write_at(0, [b"OtJb" * (32 << 8)])
    file.truncate(20_000)
    world.disk.files.open(f"{DIRECTORY}/journal-x", create=True).close()
    world.disk.files.open(f"{DIRECTORY}/journal-0009", create=True).close()
    recovered = world.recover()
    assert list(recovered.entries()) == []
    assert recovered.damage == ()


def test_a_torn_block_of_an_earlier_run_is_never_mistaken() -> None:
    """After the restart its sequence is in the past, wherever the new run writes."""
    log = Log(0)
    world = two_files()
    world.disk.damage(SECOND, 3 * 4096 + PAYLOAD_AT)
    torn = world.recover()
    assert torn.torn_end == (SECOND, 3 * 4096, 12)
    after = world.disk.crash(keep="all")
    again = World(disk=after, released=torn.last_sequence)
    for _ in range(3):
        again.append(log)
        again.run()
    recovered = again.recover(released=torn.last_sequence)
    assert recovered.damage == ()
    assert recovered.torn_end is None
    assert [entry.sequence for entry in recovered.entries()] == [13, 14, 15]
