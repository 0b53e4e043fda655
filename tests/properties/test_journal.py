"""The journal compared with a list: acknowledged mutations survive any sequence of operations and power cuts.

The model is one list of mutations in the order in which they were made. At any crash, the recovered mutations must be a
contiguous part of that list: from the first one above the checkpoint to some point at or after the last acknowledged
one.
"""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ottla.broker.storage.journal import Journal, JournalEntry, JournalLimits, Mutation, RecoveredJournal, recover
from ottla.broker.storage.journal.format import unpack_entries
from ottla.protocol.model.ids import LogKey
from ottla.protocol.records.batch import read_header
from ottla.sim.clock import SimClock
from ottla.sim.disk import Keep, SimDisk
from tests.unit.broker.storage.journal.test_journal import DIRECTORY, JOURNAL_ID, Log, make_batch

LOGS = 3
LIMITS = JournalLimits(ring_bytes_max=96 << 10, file_bytes_max=16 << 10, group_bytes_max=12 << 10, early_bytes=1500)


class Done(NamedTuple):
    """A mutation in the model."""

    kind: Mutation
    key: LogKey
    offset: int
    batch: bytes


class ModelLog(Log):
    """Checks each notification against the list of mutations."""

    def __init__(self, partition: int, run: Run) -> None:
        super().__init__(partition)
        self.run = run

    def on_journaled(self, end_offset: int) -> None:
        run = self.run
        acknowledged = run.before + run.journal.stats.entries
        mine = [done for done in run.history[:acknowledged] if done.key == self.key and has_end(done)]
        assert end_of(mine[-1]) == end_offset
        run.acknowledged = max(run.acknowledged, run.history.index(mine[-1]) + 1)


class Run:
    """One life of a broker's journal between two crashes. `history` continues from one life to the next."""

    def __init__(self, disk: SimDisk, history: list[Done], released: int) -> None:
        self.disk = disk
        self.history = history
        self.before = self.acknowledged = len(history)
        self.logs = [ModelLog(partition, self) for partition in range(LOGS)]
        for log in self.logs:
            ends = [end_of(done) for done in history if done.key == log.key and has_end(done)]
            log.end = ends[-1] if ends else 0
        assert isinstance(disk.clock, SimClock)
        self.clock = disk.clock
        self.journal = Journal.open(disk, disk.clock, DIRECTORY, JOURNAL_ID, released=released, limits=LIMITS)
        self.checkpoint = released
        self.counts = {released: len(history)}
        """How many mutations were durable after each sequence."""

    def append(self, partition: int, size: int, record_count: int) -> None:
        log = self.logs[partition]
        text = f"{len(self.history)}/".encode()
        batch = make_batch(log.end, (text * (size // len(text) + 1))[:size] or text, record_count)
        self.history.append(Done(Mutation.APPEND, log.key, log.end, bytes(batch)))
        self.journal.append_batch(log, read_header(batch), batch)
        log.end += record_count

    def mutate(self, partition: int, kind: Mutation, share: float) -> None:
        log = self.logs[partition]
        offset = int(share * log.end)
        self.history.append(Done(kind, log.key, offset, b""))
        count = len(self.history)

        def durable(error: OSError | None) -> None:
            if error is None:
                self.acknowledged = max(self.acknowledged, count)

        self.journal.append_mutation(log, kind, offset, durable)
        if kind is Mutation.TRUNCATE:
            log.end = offset

    def turn(self, count: int) -> None:
        for _ in range(count):
            if not self.clock.run_one():
                self.clock.advance(500)
            self.counts.setdefault(self.journal.durable_sequence, self.before + self.journal.stats.entries)

    def flush(self, *, everything: bool, release: bool) -> None:
        oldest = self.journal.oldest(everything=everything)
        if oldest is None:
            return
        sequence, ends = oldest
        for log, end in ends.items():
            assert isinstance(log, ModelLog)
            mine = [done for done in self.history[: self.counts[sequence]] if done.key == log.key and has_end(done)]
            assert end in (-1, end_of(mine[-1]) if mine else -1)
        self.checkpoint = max(self.checkpoint, sequence)
        if release:
            self.journal.release(sequence)


def has_end(done: Done) -> bool:
    return done.kind in (Mutation.APPEND, Mutation.TRUNCATE)


def end_of(done: Done) -> int:
    return done.offset if done.kind is Mutation.TRUNCATE else read_header(done.batch).next_offset


def as_done(entry: JournalEntry) -> Done:
    return Done(entry.kind, entry.key, entry.offset, bytes(entry.batch))


def recovered_from(disk: SimDisk, released: int) -> RecoveredJournal:
    return recover(disk.files, DIRECTORY, JOURNAL_ID, released)


PARTITION = st.integers(0, LOGS - 1)
STEP = st.one_of(
    st.tuples(st.just("append"), PARTITION, st.sampled_from([0, 10, 700, 3000, 5000, 20_000]), st.integers(1, 3)),
    st.tuples(st.just("append"), PARTITION, st.integers(0, 300), st.integers(1, 3)),
    st.tuples(
        st.just("mutate"),
        PARTITION,
        st.sampled_from([Mutation.TRUNCATE, Mutation.LOG_START, Mutation.DELETE]),
        st.floats(0, 1),
    ),
    st.tuples(st.just("turn"), st.integers(1, 6)),
    st.tuples(st.just("turn"), st.integers(6, 40)),
    st.tuples(st.just("flush"), st.booleans(), st.booleans()),
)
DISK_STEP = st.one_of(
    st.tuples(st.just("fail_write"), st.integers(1, 6)),
    st.tuples(st.just("capacity"), st.integers(10, 40)),
    st.tuples(st.just("capacity"), st.none()),
)
KEEP: st.SearchStrategy[Keep] = st.sampled_from(["some", "some", "all", "none"])
LIVES = st.lists(
    st.tuples(st.lists(st.one_of(STEP, STEP, STEP, STEP, DISK_STEP), max_size=40), st.integers(0, 1 << 20), KEEP),
    min_size=1,
    max_size=4,
)
SETTINGS = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def perform(run: Run, step: tuple[object, ...]) -> None:
    match step:
        case ("append", int(partition), int(size), int(record_count)):
            run.append(partition, size, record_count)
        case ("mutate", int(partition), Mutation() as kind, float(share)):
            run.mutate(partition, kind, share)
        case ("turn", int(count)):
            run.turn(count)
        case ("flush", bool(everything), bool(release)):
            run.flush(everything=everything, release=release)
        case ("fail_write", int(nth)):
            run.disk.faults.fail_write(nth, path="journal")
        case ("capacity", limit):
            run.disk.capacity_bytes = None if limit is None else int(str(limit)) * 4096
        case _:
            raise AssertionError(step)


def live(run: Run, steps: list[tuple[object, ...]], seed: int, keep: Keep) -> tuple[SimDisk, RecoveredJournal]:
    """Runs, crashes, recovers, and compares with the list."""
    for step in steps:
        perform(run, step)
    after = run.disk.crash(seed, keep=keep)
    after.capacity_bytes = None
    recovered = recovered_from(after, run.checkpoint)
    assert recovered.damage == ()
    found = [as_done(entry) for entry in recovered.entries()]
    start = run.counts[run.checkpoint]
    assert found == run.history[start : start + len(found)], "a stretch of what was done, in order"
    assert start + len(found) >= run.acknowledged, "nothing acknowledged is missing"
    assert run.acknowledged >= run.before
    return after, recovered


@SETTINGS
@given(lives=LIVES)
def test_what_was_acknowledged_comes_back(lives: list[tuple[list[tuple[object, ...]], int, Keep]]) -> None:
    disk = SimDisk(SimClock())
    history: list[Done] = []
    released = 0
    for steps, seed, keep in lives:
        run = Run(disk, history, released)
        disk, recovered = live(run, steps, seed, keep)
        start = run.counts[run.checkpoint]
        history = history[: start + len(list(recovered.entries()))]
        released = recovered.last_sequence


@SETTINGS
@given(steps=st.lists(STEP, max_size=40), seeds=st.lists(st.integers(0, 1 << 20), min_size=2, max_size=4), keep=KEEP)
def test_a_crash_during_recovery_changes_nothing(steps: list[tuple[object, ...]], seeds: list[int], keep: Keep) -> None:
    run = Run(SimDisk(SimClock()), [], 0)
    disk, first = live(run, steps, seeds[0], keep)
    entries = list(first.entries())
    for seed in seeds[1:]:
        disk = disk.crash(seed, keep=keep)
        again = recovered_from(disk, run.checkpoint)
        assert list(again.entries()) == entries
        assert again.last_sequence == first.last_sequence
        assert again.blocks == first.blocks


@SETTINGS
@given(
    steps=st.lists(STEP, min_size=5, max_size=40),
    seed=st.integers(0, 1 << 20),
    choice=st.integers(0, 1 << 20),
    place=st.floats(0, 1, exclude_max=True),
    bit=st.integers(0, 7),
)
def test_a_flipped_bit_is_damage_or_the_torn_end(
    steps: list[tuple[object, ...]], seed: int, choice: int, place: float, bit: int
) -> None:
    run = Run(SimDisk(SimClock()), [], 0)
    disk, before = live(run, [*steps, ("turn", 40)], seed, "some")
    if not before.blocks:
        return
    block = before.blocks[choice % len(before.blocks)]
    data = disk.files.open(block.path).read_at(block.header.offset, block.header.block_bytes)
    entries = unpack_entries(data, block.header)
    assert entries is not None
    used_bytes = block.header.payloads_at + sum(entry.payload_bytes for entry in entries)
    disk.damage(block.path, block.header.offset + int(place * used_bytes), mask=1 << bit)

    after = recovered_from(disk, run.checkpoint)
    sequence = block.header.sequence
    others = entries_of(before, disk, exclude=sequence)
    found = list(after.entries())
    assert [entry for entry in found if entry.sequence != sequence] == others, "other blocks do not suffer"
    written = [as_done(entry) for entry in found if entry.sequence == sequence]
    assert all(done in run.history for done in written), "what is left of the block is what was written"
    was_last = sequence == before.last_sequence
    if was_last:
        assert after.damage == ()
        assert written == []
    else:
        assert [(found.path, found.offset) for found in after.damage] == [(block.path, block.header.offset)]


def entries_of(recovered: RecoveredJournal, disk: SimDisk, exclude: int) -> list[JournalEntry]:
    """Returns the entries of all blocks but one, read from the current disk."""
    kept = tuple(block for block in recovered.blocks if block.header.sequence != exclude)
    return list(RecoveredJournal(disk.files, kept, (), None, recovered.last_sequence).entries())
