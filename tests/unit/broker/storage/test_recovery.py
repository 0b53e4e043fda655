"""Opening logs after a crash, with files lost, damaged or left over. Missing records are reported, never skipped."""

from __future__ import annotations

import pytest

from ottla.broker.storage.journal import JournalLimits
from ottla.broker.storage.startup.checkpoint import decode_checkpoint
from ottla.machines.producers import Accepted, Duplicate
from ottla.protocol.model.errors import ErrorCode
from ottla.sim.disk import Keep
from tests.support.sim_logs import LogBench, batch_of, key_of

CLASSES = ["disk", "cache"]
BIG_JOURNAL = JournalLimits(ring_bytes_max=1 << 20, file_bytes_max=128 * 1024, group_bytes_max=64 * 1024)


def segments_of(bench: LogBench) -> list[str]:
    return [name for name in bench.names() if name.endswith(".log")]


# -- ordinary cases ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", ["none", "some", "all"])
@pytest.mark.parametrize("flushed", [False, True])
def test_a_disk_log_has_everything_that_was_acknowledged(keep: Keep, flushed: bool) -> None:
    bench = LogBench("disk")
    batches = bench.fill(batches=50)
    if flushed:
        bench.flush()
    batches += bench.fill(batches=7)
    bench.restart(keep)
    assert bench.read_all() == batches
    assert bench.log().end_offset == 57


def test_a_segment_never_holds_what_the_journal_does_not() -> None:
    bench = LogBench("disk")
    bench.fill(batches=10)
    bench.disk.stall("journal")
    for _ in range(5):
        bench.append()
    bench.log().writer.write_now()
    bench.settle()
    assert bench.log().acknowledged_end == bench.log().written_end == 10
    bench.disk.release("journal")
    bench.settle()
    assert bench.log().acknowledged_end == bench.log().written_end == 15


def test_what_no_journal_vouches_for_is_cut_from_a_disk_log() -> None:
    """A batch beyond the recovery point is intact and in sequence, but was never acknowledged."""
    bench = LogBench("disk")
    batches = bench.fill(batches=10)
    bench.flush()
    stray = batch_of([b"stray"], base_offset=10)
    file = bench.disk.files.open(bench.path("0" * 20 + ".log"))
    file.write_at(sum(map(len, batches)), [stray])
    file.close()
    bench.disk.files.open(bench.path(f"{11:020d}.log"), create=True).write_at(0, [batch_of([b"b"], base_offset=11)])
    bench.restart("all")
    assert bench.log().end_offset == 10
    assert segments_of(bench) == ["0" * 20 + ".log"]
    more = bench.fill(batches=1)
    bench.restart("none")
    assert bench.read_all() == batches + more


def test_a_cache_log_keeps_the_page_cache_through_a_kill() -> None:
    bench = LogBench("cache")
    batches = bench.fill(batches=50)
    bench.restart("all")
    assert bench.read_all() == batches


def test_a_cache_log_keeps_what_was_flushed_through_a_power_cut() -> None:
    bench = LogBench("cache")
    batches = bench.fill(batches=30)
    bench.flush()
    bench.fill(batches=5)
    bench.restart("none")
    assert bench.read_all() == batches


@pytest.mark.parametrize("durability", CLASSES)
def test_a_restart_reads_no_more_than_the_checkpoint_leaves(durability: str) -> None:
    """After a flush the segments' bytes are not read again, except the index and the last few batches."""
    bench = LogBench(durability, settings={"segment_bytes": str(1 << 20), "index_interval_bytes": "4096"})
    bench.fill(batches=300, value_bytes=1000)
    bench.flush()
    read_bytes = 0
    bench.crash("all")  # after a power cut the indexes may be missing too, and are rebuilt
    files = bench.disk.files
    original = files.open

    def counting(path: str, *, create: bool = False):  # type: ignore[no-untyped-def]  # a DataFile that counts
        file = original(path, create=create)
        if path.endswith(".log"):
            read_at = file.read_at

            def read(offset: int, length: int) -> bytes:
                nonlocal read_bytes
                data = read_at(offset, length)
                read_bytes += len(data)
                return data

            file.read_at = read  # type: ignore[method-assign]  # counts and forwards
        return file

    files.open = counting  # type: ignore[method-assign]  # the same
    bench.start()
    assert bench.log().end_offset == 300
    assert read_bytes < 20_000


@pytest.mark.parametrize("durability", CLASSES)
def test_recovery_twice_is_recovery_once(durability: str) -> None:
    bench = LogBench(durability)
    batches = bench.fill(batches=40)
    for keep in ("all", "none", "all"):
        bench.restart(keep)
        assert bench.read_all() == batches[: bench.log().end_offset]
    if durability == "disk":
        assert bench.log().end_offset == 40


@pytest.mark.parametrize("durability", CLASSES)
def test_the_name_of_a_file_that_came_after_the_checkpoint_becomes_durable(durability: str) -> None:
    """The checkpoint knows the segment, but was written before there was anything in it."""
    bench = LogBench(durability, settings={"retention_ms": "1000"})
    bench.fill(batches=3)
    bench.settle(2000)
    bench.retain()
    bench.flush()
    batches = bench.fill(batches=3)
    bench.restart("all")
    assert bench.read_all() == batches
    if durability == "cache":
        bench.flush()
    bench.restart("none")
    assert bench.read_all() == batches


def test_a_log_that_was_flushed_before_it_had_anything() -> None:
    """The checkpoint knows the log, but its directory was created later."""
    bench = LogBench("disk")
    batch = bench.append()
    bench.flush()
    bench.restart("all")
    bench.restart("none")
    assert bench.read_all() == [batch]


# -- missing files -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", CLASSES)
@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_missing_segment_is_named_and_not_passed_over(durability: str, missing: int) -> None:
    bench = LogBench(durability)
    batches = bench.fill(batches=80)
    bench.flush()
    names = segments_of(bench)
    assert len(names) == 4
    bases = [int(name.removesuffix(".log")) for name in names] + [80]
    bench.disk.files.remove(bench.path(names[missing]))
    bench.restart("all")

    log = bench.log()
    assert (log.start_offset, log.end_offset) == (0, 80)
    gone = range(bases[missing], bases[missing + 1])
    assert [bench.read(offset) for offset in range(80)] == [
        ErrorCode.corrupt_message if offset in gone else [batches[offset]] for offset in range(80)
    ]
    assert [(d.path, d.first_offset, d.next_offset) for d in log.damages] == [
        (bench.path(names[missing]), gone.start, gone.stop)
    ]
    assert any(names[missing] in report for report in bench.reports)


@pytest.mark.parametrize("durability", CLASSES)
def test_a_missing_last_segment_is_named_and_the_log_goes_on_above(durability: str) -> None:
    bench = LogBench(durability)
    batches = bench.fill(batches=80)
    bench.flush()
    last = segments_of(bench)[-1]
    bench.disk.files.remove(bench.path(last))
    bench.restart("all")
    log = bench.log()
    base = int(last.removesuffix(".log"))
    assert (log.start_offset, log.end_offset) == (0, 80), "an offset that was given out is not given out again"
    assert [bench.read(offset) for offset in range(80)] == [
        [batches[offset]] if offset < base else ErrorCode.corrupt_message for offset in range(80)
    ]
    more = bench.fill(batches=2)
    assert [bench.read(80), bench.read(81)] == [[more[0]], [more[1]]]


@pytest.mark.parametrize("durability", CLASSES)
def test_a_wiped_directory_is_named(durability: str) -> None:
    bench = LogBench(durability)
    bench.fill(batches=60)
    bench.flush()
    bench.crash("all")
    bench.disk.files.remove_tree(bench.store.directory_of(key_of(0)))
    bench.start()
    log = bench.log()
    assert (log.start_offset, log.end_offset) == (0, 60)
    assert {bench.read(offset) for offset in range(60)} == {ErrorCode.corrupt_message}
    more = bench.fill(batches=1)
    assert bench.read(60) == more


@pytest.mark.parametrize("durability", CLASSES)
def test_a_shortened_segment_is_named(durability: str) -> None:
    bench = LogBench(durability)
    batches = bench.fill(batches=20)
    bench.flush()
    size = len(batches[0])
    file = bench.disk.files.open(bench.path("0" * 20 + ".log"))
    file.truncate(12 * size + 30)
    file.close()
    bench.restart("all")
    log = bench.log()
    assert log.end_offset == 20
    assert [bench.read(offset) for offset in range(20)] == [
        [batches[offset]] if offset < 12 else ErrorCode.corrupt_message for offset in range(20)
    ]


@pytest.mark.parametrize("durability", CLASSES)
@pytest.mark.parametrize("left", [0, 1, 2])
def test_expired_files_may_be_gone_in_any_order(durability: str, left: int) -> None:
    bench = LogBench(durability, settings={"retention_ms": "1000"})
    bench.fill(batches=60)
    bench.flush()
    names = segments_of(bench)
    content = bench.disk.files.read_file(bench.path(names[left]))
    bench.settle(2000)
    bench.retain()
    bench.flush()
    bench.crash("none")
    file = bench.disk.files.open(bench.path(names[left]), create=True)
    file.truncate(0)
    file.write_at(0, [content])
    file.close()
    bench.start()
    log = bench.log()
    assert (log.start_offset, log.end_offset) == (60, 60)
    assert not log.damages
    batches = bench.fill(batches=30)
    bench.retain()
    bench.restart("all")
    assert bench.read_all() == batches


# -- the checkpoint ----------------------------------------------------------------------------------------------


def lose_checkpoint(bench: LogBench, how: str) -> None:
    path = "/data/checkpoint"
    if how == "lost":
        bench.disk.files.remove(path)
    elif how == "empty":
        bench.disk.files.replace_file(path, b"")
    elif how == "cut":
        bench.disk.files.replace_file(path, bench.disk.files.read_file(path)[:-3])
    else:
        bench.disk.damage(path, 30, 0x10)


@pytest.mark.parametrize("how", ["lost", "empty", "cut", "damaged"])
@pytest.mark.parametrize("keep", ["none", "all"])
def test_without_a_checkpoint_everything_is_read_instead(how: str, keep: Keep) -> None:
    bench = LogBench("disk", "cache", "disk", limits=BIG_JOURNAL)
    appended = [bench.fill(number, batches=50) for number in range(3)]
    bench.flush()
    appended[0] += bench.fill(0, batches=10)
    appended[2] += bench.fill(2, batches=10)
    bench.crash(keep)
    lose_checkpoint(bench, how)
    bench.start()
    assert [bench.read_all(number) for number in range(3)] == appended
    assert any("checkpoint" in report for report in bench.reports)
    bench.restart("none")
    assert [bench.read_all(number) for number in range(3)] == appended


def test_without_a_checkpoint_damage_is_kept_apart_and_nothing_else_is_lost() -> None:
    bench = LogBench("disk", limits=BIG_JOURNAL)
    batches = bench.fill(batches=50)
    bench.flush()
    tail = bench.fill(batches=5)
    bench.crash("none")
    bench.disk.damage(bench.path("0" * 20 + ".log"), 5 * len(batches[0]) + 70, 0xFF)
    content = bench.disk.files.read_file(bench.path("0" * 20 + ".log"))
    lose_checkpoint(bench, "lost")
    bench.start()
    kept = [name for name in bench.names() if name.endswith(".damaged")]
    assert any(bench.disk.files.read_file(bench.path(name)) in content for name in kept)
    assert [bench.read(offset) for offset in range(5)] == [[batch] for batch in batches[:5]]
    # The journal still has the end; what it lacks is reported as lost, not skipped.
    assert bench.log().end_offset == 55
    assert bench.read(54) == tail[-1:]
    assert bench.read(5) in (ErrorCode.corrupt_message, [batches[5]])


def test_a_lost_journal_is_told() -> None:
    bench = LogBench("disk")
    batches = bench.fill(batches=10)
    bench.flush()
    bench.fill(batches=5)
    bench.crash("none")
    for name in bench.disk.files.list_dir("/data/journal"):
        bench.disk.files.remove(f"/data/journal/{name}")
    bench.start()
    assert bench.read_all() == batches
    assert any("/data/journal" in report and "may be missing" in report for report in bench.reports)


def test_a_state_that_is_ahead_is_not_believed_where_the_log_ends_before_it() -> None:
    """A retry of a batch that was lost with the journal is not a duplicate: it must be appended."""
    bench = LogBench("disk")
    bench.append(producer=(7, 0, 0))
    bench.settle()
    bench.flush()
    bench.append(producer=(7, 0, 1))
    bench.settle()
    bench.disk.faults.fail_sync(path="/data/checkpoint", count=None)
    bench.flusher.run(everything=True)
    bench.settle()
    bench.crash("none")
    for name in bench.disk.files.list_dir("/data/journal"):
        bench.disk.files.remove(f"/data/journal/{name}")
    bench.start()
    assert bench.log().end_offset == 1
    assert isinstance(bench.log().producers.judge(7, 0, 0, 0), Duplicate)
    assert bench.log().producers.judge(7, 0, 1, 1) == Accepted()


def test_the_checkpoint_never_releases_what_is_not_flushed() -> None:
    bench = LogBench("disk", "disk")
    first = bench.fill(0, batches=10)
    bench.disk.stall("sync")
    bench.flusher.run(everything=True)
    bench.settle()
    second = bench.fill(1, batches=10)
    bench.disk.release("sync")
    bench.settle()
    checkpoint = decode_checkpoint(bench.disk.files.read_file("/data/checkpoint"))
    assert key_of(0) in checkpoint.points
    assert checkpoint.released_sequence < bench.journal.durable_sequence
    bench.restart("none")
    assert (bench.read_all(0), bench.read_all(1)) == (first, second)


# -- a cache log beyond its checkpoint ---------------------------------------------------------------------------


def test_damage_beyond_the_checkpoint_of_a_cache_log_is_kept_apart() -> None:
    bench = LogBench("cache")
    batches = bench.fill(batches=10)
    bench.flush()
    batches += bench.fill(batches=10)
    path = bench.path("0" * 20 + ".log")
    position = sum(map(len, batches[:14]))
    bench.disk.damage(path, position + 80, 0xFF)
    bench.restart("all")
    assert bench.read_all() == batches[:14]
    (kept,) = [name for name in bench.names() if name.endswith(".damaged")]
    rest = bench.disk.files.read_file(bench.path(kept))
    assert rest.endswith(b"".join(batches[15:]))
    assert any(path in report and "offset 14" in report for report in bench.reports)
    more = bench.fill(batches=3)
    bench.restart("all")
    assert bench.read_all() == batches[:14] + more


def test_segments_that_follow_the_damage_are_kept_apart_too() -> None:
    bench = LogBench("cache")
    batches = bench.fill(batches=60)
    later = segments_of(bench)[1:]
    content = [bench.disk.files.read_file(bench.path(name)) for name in later]
    bench.disk.damage(bench.path("0" * 20 + ".log"), sum(map(len, batches[:9])) + 80, 0xFF)
    bench.restart("all")
    assert bench.read_all() == batches[:9]
    assert [bench.disk.files.read_file(bench.path(f"{name}.damaged")) for name in later] == content


def test_a_torn_end_of_a_cache_log_is_cut_in_silence() -> None:
    bench = LogBench("cache")
    batches = bench.fill(batches=10)
    file = bench.disk.files.open(bench.path("0" * 20 + ".log"))
    file.truncate(sum(map(len, batches)) - 5)
    bench.restart("all")
    assert bench.read_all() == batches[:9]
    assert not bench.reports
    assert not [name for name in bench.names() if name.endswith(".damaged")]


def test_a_cut_end_does_not_come_back_after_a_power_cut() -> None:
    """The old bytes beyond the truncation would seem to continue the new ones."""
    bench = LogBench("cache", settings={"segment_bytes": "100000"})
    batches = bench.fill(batches=10)
    bench.flush()
    batches += bench.fill(batches=10)
    size = len(batches[0])
    bench.disk.damage(bench.path("0" * 20 + ".log"), 12 * size + 80, 0xFF)
    bench.restart("all")
    assert bench.log().end_offset == 12
    new = bench.fill(batches=1)
    bench.restart("none")
    assert bench.log().end_offset in (12, 13)
    assert bench.read_all() == [*batches[:12], *new][: bench.log().end_offset]


# -- leftovers -----------------------------------------------------------------------------------------------------


def test_directories_that_no_topic_claims_are_set_aside() -> None:
    bench = LogBench("disk", "disk")
    batches = bench.fill(0, batches=5)
    bench.fill(1, batches=5)
    bench.flush()
    directory = bench.store.directory_of(key_of(1))
    content = bench.disk.files.read_file(f"{directory}/{'0' * 20}.log")
    bench.crash()
    config = bench.configs.pop(key_of(1))
    bench.start()
    assert bench.read_all(0) == batches
    aside = directory.replace("/logs/", "/set-aside/")
    assert bench.disk.files.read_file(f"{aside}/{'0' * 20}.log") == content
    assert any(aside in report for report in bench.reports)

    # A second directory of that name does not prevent the start, and both are kept.
    bench.configs[key_of(1)] = config
    bench.restart("all")
    bench.fill(1, batches=2)
    bench.flush()
    bench.crash("all")
    del bench.configs[key_of(1)]
    bench.start()
    assert bench.disk.files.read_file(f"{aside}/{'0' * 20}.log") == content
    assert len(bench.disk.files.list_dir("/data/set-aside")) == 2


def test_the_remains_of_a_deleted_log_are_removed() -> None:
    bench = LogBench("disk", "disk")
    bench.fill(1, batches=30)
    bench.flush()
    directory = bench.store.directory_of(key_of(1))
    bench.disk.files.rename(directory, directory + ".deleted")
    bench.crash("all")
    del bench.configs[key_of(1)]
    bench.start()
    assert not [name for name in bench.disk.files.list_dir("/data/logs") if key_of(1).topic_id.hex in name]
    assert not bench.disk.files.exists("/data/set-aside")
