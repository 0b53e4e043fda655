"""Cuts the power at every operation of a segment swap, in many ways, and again during the following startup. Either the
old segments exist or the new one, never a mixture."""

from __future__ import annotations

import pytest

from ottla.broker.storage.compaction import swap
from ottla.broker.storage.segment import INDEX_SUFFIX, segment_name
from ottla.sim.clock import SimClock
from ottla.sim.disk import Keep, SimDisk
from tests.support.power_cut import PowerCut, PowerCutError

DIRECTORY = "/data/log"
OLD = {0: b"old 0 " * 1000, 10: b"old 10 " * 900, 25: b"old 25 " * 800}
NEW = b"new " * 1400
AFTER = {40: b"after " * 100}
SEEDS = range(12)


def prepared(seed: int) -> SimDisk:
    """Old segments with their indexes, durably stored; the new one is written and synced under a temporary name."""
    disk = SimDisk(SimClock(), seed=seed)
    disk.files.make_dirs(DIRECTORY)
    for base, data in {**OLD, **AFTER}.items():
        disk.files.replace_file(f"{DIRECTORY}/{segment_name(base)}", data)
        disk.files.replace_file(
            f"{DIRECTORY}/{segment_name(base).removesuffix('.log')}{INDEX_SUFFIX}", b"index of the old"
        )
    disk.files.sync_dir("/data")
    file = disk.files.open(swap.compacted_path(DIRECTORY, 0), create=True)
    file.write_at(0, [NEW])
    file.sync()
    file.close()
    return disk


def swap_all(disk: SimDisk) -> None:
    intended = swap.Swap(len(NEW), tuple(OLD))
    swap.write_intent(disk.files, DIRECTORY, intended)
    swap.perform(disk.files, DIRECTORY, intended)


def operations() -> int:
    disk = prepared(0)
    power = PowerCut(disk)
    swap_all(disk)
    return power.operations


def contents(disk: SimDisk) -> dict[int, bytes]:
    names = disk.files.list_dir(DIRECTORY)
    assert not [name for name in names if name == swap.INTENT_FILE or name.endswith(swap.COMPACTED_SUFFIX)]
    segments = [name for name in names if name.endswith(".log")]
    return {int(name.removesuffix(".log")): disk.files.read_file(f"{DIRECTORY}/{name}") for name in segments}


def check(disk: SimDisk) -> None:
    found = contents(disk)
    assert found in ({**OLD, **AFTER}, {0: NEW, **AFTER})
    if found[0] == NEW:
        assert f"{segment_name(0).removesuffix('.log')}{INDEX_SUFFIX}" not in disk.files.list_dir(DIRECTORY)


@pytest.mark.parametrize("keep", ["none", "some", "all"])
def test_a_crash_at_any_operation(keep: Keep) -> None:
    for nth in range(1, operations() + 1):
        for seed in SEEDS:
            disk = prepared(seed)
            PowerCut(disk, nth)
            with pytest.raises(PowerCutError):
                swap_all(disk)
            after = disk.crash(seed, keep=keep)
            swap.finish(after.files, DIRECTORY)
            check(after)


def test_a_second_crash_in_the_middle_of_the_start() -> None:
    total = operations()
    for nth in range(1, total + 1):
        for second in range(1, total + 1):
            disk = prepared(nth)
            PowerCut(disk, nth)
            with pytest.raises(PowerCutError):
                swap_all(disk)
            after = disk.crash(nth, keep="some")
            power = PowerCut(after, second)
            try:
                swap.finish(after.files, DIRECTORY)
                power.call_off()
            except PowerCutError:
                after = after.crash(second, keep="some")
                swap.finish(after.files, DIRECTORY)
            check(after)


def test_a_damaged_intent_removes_nothing() -> None:
    disk = prepared(0)
    swap.write_intent(disk.files, DIRECTORY, swap.Swap(len(NEW), tuple(OLD)))
    disk.damage(f"{DIRECTORY}/{swap.INTENT_FILE}", 20)
    with pytest.raises(OSError, match="damaged"):
        swap.finish(disk.files, DIRECTORY)
    names = disk.files.list_dir(DIRECTORY)
    assert all(segment_name(base) in names for base in OLD)


def test_nothing_is_removed_for_a_segment_that_is_not_there() -> None:
    disk = prepared(0)
    swap.write_intent(disk.files, DIRECTORY, swap.Swap(len(NEW), tuple(OLD)))
    disk.files.remove(swap.compacted_path(DIRECTORY, 0))
    with pytest.raises(OSError, match="bytes"):
        swap.finish(disk.files, DIRECTORY)
    names = disk.files.list_dir(DIRECTORY)
    assert all(segment_name(base) in names for base in OLD)


def test_an_intent_does_not_come_back() -> None:
    """A log may be truncated and grow again: then another segment has the name of one that was replaced."""
    disk = prepared(0)
    swap_all(disk)
    file = disk.files.open(f"{DIRECTORY}/{segment_name(10)}", create=True)
    file.write_at(0, [b"another"])
    file.sync()
    for seed in SEEDS:
        after = disk.crash(seed, keep="some")
        swap.finish(after.files, DIRECTORY)
        assert contents(after)[0] == NEW
        disk.state.off = False
    disk.files.sync_dir(DIRECTORY)
    after = disk.crash(keep="none")
    swap.finish(after.files, DIRECTORY)
    assert contents(after) == {0: NEW, 10: b"another", **AFTER}
