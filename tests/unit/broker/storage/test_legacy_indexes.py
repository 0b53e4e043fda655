"""Data directories of earlier versions, whose index files have Kafka's suffix, still open."""

from __future__ import annotations

import errno

import pytest

from ottla.broker.storage.compaction import swap
from ottla.broker.storage.segment import INDEX_SUFFIX, segment_name
from ottla.broker.storage.startup.checkpoint import RecoveryPoint
from ottla.broker.storage.startup.legacy_indexes import LEGACY_SUFFIX
from ottla.broker.storage.startup.recovery import open_file_log
from ottla.broker.storage.truncation import lowered_point
from ottla.sim.disk import Keep
from tests.support.power_cut import PowerCut, PowerCutError
from tests.support.sim_logs import LogBench, config_of, key_of

CLASSES = ["disk", "cache"]


def index_names(bench: LogBench, suffix: str) -> list[str]:
    return [name for name in bench.names() if name.endswith(suffix)]


def made_legacy(bench: LogBench) -> None:
    """Stops the broker and converts the directory to an earlier version's form."""
    bench.flush()
    bench.crash("all")
    for name in index_names(bench, INDEX_SUFFIX):
        old = name.removesuffix(INDEX_SUFFIX) + LEGACY_SUFFIX
        bench.disk.files.rename(bench.path(name), bench.path(old))
    bench.disk.files.sync_dir(bench.path("").rstrip("/"))


def legacy_bench(durability: str, seed: int = 1) -> tuple[LogBench, list[bytes]]:
    bench = LogBench(durability, seed=seed)
    batches = bench.fill(batches=60, value_bytes=500)
    assert len(bench.log().segments) > 2
    made_legacy(bench)
    return bench, batches


def test_no_file_of_ours_has_a_name_of_kafkas_with_another_format() -> None:
    bench = LogBench("disk")
    bench.fill(batches=60, value_bytes=500)
    bench.flush()
    kafkas = (".index", ".timeindex", ".txnindex", ".snapshot", "-checkpoint", ".cleaned", ".swap", ".metadata")
    assert [name for name in bench.names() if name.endswith(kafkas)] == []
    assert index_names(bench, INDEX_SUFFIX)


@pytest.mark.parametrize("durability", CLASSES)
def test_an_earlier_versions_directory_opens(durability: str) -> None:
    bench, batches = legacy_bench(durability)
    old = {
        name.removesuffix(LEGACY_SUFFIX): bench.disk.files.read_file(bench.path(name))
        for name in index_names(bench, LEGACY_SUFFIX)
    }
    bench.start()
    assert bench.read_all() == batches
    assert index_names(bench, LEGACY_SUFFIX) == []
    sealed = [segment_name(segment.base_offset).removesuffix(".log") for segment in bench.log().segments[:-1]]
    for name in sealed:
        assert bench.disk.files.read_file(bench.path(name + INDEX_SUFFIX)) == old[name], "kept, not built again"
    batches += bench.fill(batches=5)
    bench.flush()
    bench.restart()
    assert bench.read_all() == batches
    assert not bench.log().damages


def test_an_index_that_an_earlier_version_has_overtaken_is_not_used() -> None:
    """After a downgrade and another upgrade, the files with the current names are older than their segments."""
    bench, batches = legacy_bench("disk")
    names = index_names(bench, LEGACY_SUFFIX)
    last = bench.disk.files.read_file(bench.path(names[-1]))
    for name in names[:-1]:
        bench.disk.files.replace_file(bench.path(name.removesuffix(LEGACY_SUFFIX) + INDEX_SUFFIX), last)
    stale = f"{99_999:020d}{INDEX_SUFFIX}"
    bench.disk.files.replace_file(bench.path(stale), last)
    bench.start()
    assert bench.read_all() == batches
    assert index_names(bench, LEGACY_SUFFIX) == []
    assert stale not in bench.names()


@pytest.mark.parametrize("keep", ["none", "some", "all"])
@pytest.mark.parametrize("durability", CLASSES)
def test_a_power_cut_while_they_are_renamed(durability: str, keep: Keep) -> None:
    bench, _ = legacy_bench(durability)
    renames = len(index_names(bench, LEGACY_SUFFIX))
    for nth in range(1, 12 + 3 * renames):
        bench, batches = legacy_bench(durability, seed=nth)
        PowerCut(bench.disk, nth)
        with pytest.raises(PowerCutError):
            bench.start()
        bench.crash(keep, seed=nth)
        bench.start()
        assert bench.read_all() == batches
        assert index_names(bench, LEGACY_SUFFIX) == []


def test_a_full_disk_has_no_room_for_the_longer_names(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, batches = legacy_bench("disk")

    def rename(old: str, new: str) -> None:
        assert old.endswith(LEGACY_SUFFIX)
        raise OSError(errno.ENOSPC, "no space left on device", new)

    monkeypatch.setattr(bench.disk.files, "rename", rename)
    bench.start()
    assert bench.read_all() == batches
    assert index_names(bench, LEGACY_SUFFIX) == []


@pytest.mark.parametrize("with_cut", [True, False])
def test_a_swap_of_segments_that_an_earlier_version_decided(with_cut: bool) -> None:
    """The index of a replaced segment must not be used for the new one."""
    bench, directory = LogBench("disk"), "/data/swapped"
    files = bench.disk.files
    files.make_dirs(directory)
    for base in (0, 10):
        files.replace_file(f"{directory}/{segment_name(base)}", b"old" * 100)
        files.replace_file(f"{directory}/{base:020d}{LEGACY_SUFFIX}", b"index of the old")
    files.replace_file(swap.compacted_path(directory, 0), b"new")
    swap.write_intent(files, directory, swap.Swap(3, (0, 10)))
    point = RecoveryPoint(20, 0, 3, 0)
    if with_cut:
        lowered_point(files, directory, point, 5)
    else:
        open_file_log(bench.shared, key_of(7), directory, config_of(), point)
    assert [name for name in files.list_dir(directory) if not name.endswith(".log")] == []
