"""The parts of a log that find batches, compared with plain lists."""

from __future__ import annotations

from bisect import bisect_right

from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.storage.batches import NEWEST_BYTES_MAX, BatchList
from ottla.broker.storage.epochs import LeaderEpochs
from ottla.broker.storage.index import SparseIndex
from ottla.broker.storage.tail_cache import ENTRY_BYTES, TailCache
from ottla.protocol.records.replica_run import ReplicaRun

sizes = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 300)), max_size=60)
"""(records, bytes) of each batch."""


@given(sizes, st.integers(0, 61), st.integers(0, 60), st.integers(-1, 320), st.integers(0, 2000), st.integers(0, 330))
def test_a_list_of_batches(
    batches: list[tuple[int, int]], one_by_one: int, dropped: int, offset: int, max_bytes: int, upto: int
) -> None:
    tested = BatchList()
    model: list[tuple[int, int, bytes]] = []
    base = 0
    for number, (count, size) in enumerate(batches):
        model.append((base, base + count, bytes([number]) * size))
        base += count
    for first, end, data in model[:one_by_one]:
        tested.append(first, end, memoryview(data))
    run = ReplicaRun(0)
    for first, end, data in model[one_by_one:]:
        run.bases.append(first)
        run.ends.append(end)
        run.batches.append(memoryview(data))
    tested.append_run(run)
    for _ in range(min(dropped, len(model))):
        assert tested.drop_oldest(1, base, 1, 0) == (1, len(model.pop(0)[2]))
    assert len(tested) == len(model)
    assert tested.size_bytes == sum(len(data) for _, _, data in model)
    assert tested.first_offset == (model[0][0] if model else None)
    assert tested.covers(offset) == (bool(model) and model[0][0] <= offset < model[-1][1])
    if not tested.covers(offset):
        return
    assert tested.bytes_from(offset) == sum(len(data) for _, end, data in model if end > offset)
    expected: list[bytes] = []
    for _, end, data in model[bisect_right([batch[0] for batch in model], offset) - 1 :]:
        if end > upto or (expected and sum(map(len, expected)) + len(data) > max_bytes):
            break
        expected.append(data)
        if sum(map(len, expected)) >= max_bytes:
            break
    part = tested.read(offset, max_bytes, upto)
    assert list(map(bytes, part.buffers)) == expected
    assert part.size_bytes == sum(map(len, expected))
    assert [(b, e, bytes(v)) for b, e, v in tested.views_from(offset)] == [
        batch for batch in model if batch[1] > offset
    ]


@given(sizes, st.integers(0, 60), st.integers(0, 330))
def test_the_newest_batch_is_read_without_a_search(batches: list[tuple[int, int]], dropped: int, upto: int) -> None:
    tested, base = BatchList(), 0
    for count, size in batches:
        tested.append(base, base + count, memoryview(bytes(size)))
        base += count
    for _ in range(min(dropped, len(batches))):
        tested.drop_oldest(1, base, 1, 0)
    last_base = base - batches[-1][0] if len(tested) and base <= upto else None
    for offset in range(-1, base + 2):
        expected = tested.read(offset, 1, upto) if offset == last_base else None
        assert tested.newest(offset, upto) == expected


def test_a_large_batch_is_read_as_any_other() -> None:
    """The bound of the tail cache follows reads of large batches, also at the end of a log."""
    for size, is_small in ((NEWEST_BYTES_MAX, True), (NEWEST_BYTES_MAX + 1, False)):
        tested = BatchList()
        tested.append(0, 1, memoryview(bytes(size)))
        assert (tested.newest(0, 1) is not None) == is_small


@given(
    st.lists(st.integers(0, 300), max_size=100),
    st.integers(0, 5),
    st.integers(0, 110),
    st.integers(0, 110),
    st.integers(-10, 20_000),
    st.integers(0, 100),
)
def test_the_oldest_go_as_if_one_by_one(
    sizes: list[int], gone: int, count_max: int, upto: int, size_bytes: int, entry_bytes: int
) -> None:
    tested = BatchList()
    for offset, size in enumerate(sizes):
        tested.append(offset, offset + 1, memoryview(bytes(size)))
    tested.drop_oldest(gone, len(sizes), 1 << 30, 0)
    left = list(enumerate(sizes))[gone:]
    taken = 0
    count = 0
    for offset, size in left[:count_max]:
        if taken >= size_bytes or offset + 1 > upto:
            break
        taken += size + entry_bytes
        count += 1
    assert tested.drop_oldest(count_max, upto, size_bytes, entry_bytes) == (count, taken - count * entry_bytes)
    assert tested.size_bytes == sum(size for _, size in left[count:])
    assert [(base, len(view)) for base, _, view in tested.views_from(0)] == left[count:]


class CachedLog:
    def __init__(self) -> None:
        self.tail = BatchList()
        self.written_end = 0
        self.end = 0


@given(
    st.integers(0, 5000),
    st.lists(st.tuples(st.sampled_from(["add", "add", "write", "forget"]), st.integers(0, 2), st.integers(0, 900))),
)
def test_the_tail_cache_gives_up_what_is_written_and_nothing_else(
    bound: int, steps: list[tuple[str, int, int]]
) -> None:
    cache = TailCache(bound)
    logs = [CachedLog() for _ in range(3)]
    for action, number, size in steps:
        log = logs[number]
        if action == "add":
            cache.add(log, log.end, log.end + 1, memoryview(bytes(size)))
            log.end += 1
        elif action == "write":
            log.written_end = min(log.written_end + size % 7, log.end)
            cache.on_written(log)
        else:
            cache.forget(log)
            log.written_end = log.end
        held = sum(log.tail.size_bytes + len(log.tail) * ENTRY_BYTES for log in logs)
        assert cache.size_bytes == held
        unwritten = [log for log in logs if log.end > log.written_end]
        for each in unwritten:
            assert each.tail.first_offset is not None
            assert each.tail.first_offset <= each.written_end
        if held > bound:
            # Only unwritten batches remain above the bound: the oldest of each log is unwritten.
            assert all(log.tail.drop_oldest(1, log.written_end, 1, 0) == (0, 0) for log in logs)


@given(
    st.integers(1, 600),
    st.lists(st.tuples(st.integers(1, 5), st.integers(61, 400), st.integers(0, 1000)), max_size=50),
    st.integers(-5, 1005),
    st.integers(0, 300),
)
def test_the_index_never_leads_past_what_is_wanted(
    interval: int, batches: list[tuple[int, int, int]], timestamp_ms: int, offset: int
) -> None:
    index = SparseIndex(interval)
    offset_now = position = 0
    highest = -1
    placed: list[tuple[int, int, int, int]] = []
    for count, size, time in batches:
        highest = max(highest, time)
        index.note(offset_now, position, highest)
        placed.append((offset_now, offset_now + count, position, time))
        offset_now, position = offset_now + count, position + size
    for each in (index, SparseIndex.parse(index.unpersisted(), interval, position)):
        relative, found = each.entry_for_offset(offset)
        holders = [batch[2] for batch in placed if batch[0] <= offset < batch[1]]
        assert all(found <= holder for holder in holders)
        assert (relative, found) in [(0, 0), *((batch[0], batch[2]) for batch in placed)]
        at = each.position_for_time(timestamp_ms)
        assert all(batch[3] < timestamp_ms for batch in placed if batch[2] < at)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4)), max_size=30), st.integers(-1, 40), st.data())
def test_leader_epochs(steps: list[tuple[int, int]], asked: int, data: st.DataObject) -> None:
    """Compared with the epoch of every single offset."""
    known = LeaderEpochs()
    per_offset: list[int] = []
    epoch = 0
    for rise, count in steps:
        epoch += rise
        known.note(epoch, len(per_offset))
        per_offset += [epoch] * count
    end = len(per_offset)
    assert [known.epoch_at(offset) for offset in range(end)] == per_offset
    answer = known.end_of(asked, end)
    if not per_offset or asked > per_offset[-1] or asked < 0:
        assert answer == (-1, -1)
    else:
        below = [e for e in per_offset if e <= asked]
        assert answer == ((max(below) if below else asked), len(below))
    start = data.draw(st.integers(0, end))
    known.truncate_before(start)
    assert [known.epoch_at(offset) for offset in range(start, end)] == per_offset[start:]
