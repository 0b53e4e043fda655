"""`archive verify` finds every change to an archive, and nothing in an intact one."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from ottla.archive.commits import CHECKPOINT_EVERY
from ottla.archive.failures import DamagedError, PipelineError
from ottla.archive.manifest import Change, ManifestLog
from ottla.archive.ranges import OffsetRange
from ottla.archive.store import Store
from ottla.archive.verification import verify
from ottla.spark.jobs.archive import now_ms, sweep
from tests.spark.jobs.archives import AT, append, write_file


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Three batches; the second has offsets without records, as from transaction markers."""
    store = Store(str(tmp_path / "archive"))
    append(store, OffsetRange(0, 10))
    append(store, OffsetRange(10, 20), [11, 12, 15, 18])
    append(store, OffsetRange(20, 30))
    return store


def kinds(store: Store, *, deep: bool = True) -> list[str]:
    return sorted({each.kind for each in verify(store, deep=deep).faults})


def paths(store: Store) -> list[str]:
    return sorted(ManifestLog(store).load().files)


def test_a_whole_archive_has_no_fault_though_offsets_have_no_records(store: Store) -> None:
    verdict = verify(store, deep=True)
    assert verdict.findings == []
    assert (verdict.file_count, verdict.rows, verdict.offsets) == (3, 24, 30)


def test_a_removed_file_is_missing(store: Store) -> None:
    store.delete(paths(store)[1])
    (finding,) = verify(store).findings
    assert (finding.kind, finding.where) == ("missing", paths(store)[1])
    assert "offsets 11-18" in finding.text


def test_a_copied_file_is_doubled(store: Store) -> None:
    path = paths(store)[0]
    copy = path.replace(".parquet", "-copy.parquet")
    shutil.copy(store.full_path(path), store.full_path(copy))
    (finding,) = verify(store).findings
    assert (finding.kind, finding.where) == ("doubled", copy)


def test_a_file_that_two_commits_name_is_doubled(store: Store) -> None:
    log = ManifestLog(store)
    manifest = log.load()
    log.commit(manifest, Change("append", 0, {}, {}, [next(iter(manifest.files.values()))]))
    assert kinds(store) == ["doubled"]


def test_a_range_that_was_never_read_is_a_gap(store: Store) -> None:
    append(store, OffsetRange(35, 40))
    (finding,) = verify(store).findings
    assert (finding.kind, finding.where, finding.text) == ("gap", str(AT), "offsets 30-34 were never read")


def test_a_range_that_was_read_twice_is_an_overlap(store: Store) -> None:
    append(store, OffsetRange(25, 35))
    assert kinds(store) == ["doubled", "overlap"]
    assert any("offsets 25-29 were archived twice" in each.text for each in verify(store).findings)


def test_lost_offsets_that_were_accepted_are_still_said(store: Store) -> None:
    log = ManifestLog(store)
    log.commit(log.load(), Change("append", 0, {}, {AT: OffsetRange(30, 50)}))
    assert kinds(store) == ["lost"]
    assert ManifestLog(store).load().end_of(AT) == 50


def test_a_file_with_other_rows_than_its_commit_says_is_different(store: Store) -> None:
    file = ManifestLog(store).load().files[paths(store)[2]]
    changed = write_file(store, OffsetRange(20, 30), range(20, 29), attempt="b")
    Path(store.full_path(changed.path)).replace(store.full_path(file.path))
    found = verify(store).findings
    assert {each.kind for each in found} == {"different"}
    assert any("9 rows; its commit says 10" in each.text for each in found)
    assert any("offsets 20-28; its commit says 20-29" in each.text for each in found)


def test_a_changed_byte_is_damage(store: Store) -> None:
    path = Path(store.full_path(paths(store)[0]))
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    assert kinds(store, deep=True) == ["damaged"]


def test_half_a_file_is_damage(store: Store) -> None:
    path = Path(store.full_path(paths(store)[0]))
    path.write_bytes(path.read_bytes()[:-200])
    assert kinds(store, deep=False) == ["damaged"]


def test_what_a_killed_run_left_is_no_fault_and_the_next_run_removes_it(store: Store) -> None:
    left = write_file(store, OffsetRange(30, 40), range(30, 40), attempt="dead")
    half = left.path.replace(".parquet", "-half.parquet")
    Path(store.full_path(half)).write_bytes(b"PAR1 and no more")
    verdict = verify(store)
    assert [each.kind for each in verdict.findings] == ["leftover", "leftover"]
    assert verdict.faults == []
    assert sorted(sweep(store, ManifestLog(store).load(), now_ms())) == sorted([left.path, half])
    assert verify(store, deep=True).findings == []


def test_merged_files_stay_for_readers_and_are_removed_later(store: Store) -> None:
    log = ManifestLog(store)
    manifest = log.load()
    old = paths(store)[:1]
    new = replace(write_file(store, OffsetRange(0, 10), range(10), attempt="merged"))
    manifest = log.commit(manifest, Change("compact", 1_000, added=[new], removed=old))
    assert verify(store, deep=True).findings == []
    assert sweep(store, manifest, 1_500, retired_kept_ms=1_000) == []
    assert sweep(store, manifest, 2_000, retired_kept_ms=1_000) == old
    assert verify(store, deep=True).findings == []


def test_a_missing_or_changed_commit_is_said(store: Store) -> None:
    commit = Path(store.full_path("_manifest/00000000000000000001.json"))
    whole = commit.read_text()
    commit.write_text(whole.replace('"rows": 4', '"rows": 5'))
    (finding,) = verify(store).findings
    assert (finding.kind, "does not match its checksum" in finding.text) == ("manifest", True)
    commit.unlink()
    with pytest.raises(DamagedError, match="is missing, but later commits exist"):
        ManifestLog(store).load()


def test_two_who_commit_at_once_do_not_overwrite_one_another(store: Store) -> None:
    log = ManifestLog(store)
    mine, theirs = log.load(), log.load()
    log.commit(theirs, Change("append", 0, {AT: OffsetRange(30, 40)}))
    with pytest.raises(PipelineError, match="another job wrote commit 3"):
        log.commit(mine, Change("append", 0, {AT: OffsetRange(30, 35)}))
    assert ManifestLog(store).load().end_of(AT) == 40


def test_the_manifest_is_the_same_through_a_checkpoint(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    log = ManifestLog(store)
    manifest = log.load()
    for number in range(CHECKPOINT_EVERY + 3):
        manifest = log.commit(manifest, Change("append", 0, {AT: OffsetRange(number, number + 1)}))
    for number in range(CHECKPOINT_EVERY):
        Path(store.full_path(f"_manifest/{number:020d}.json")).unlink()
    assert ManifestLog(store).load() == manifest
    assert manifest.ranges == {AT: [OffsetRange(0, CHECKPOINT_EVERY + 3)]}


def test_one_writer_at_a_time(store: Store) -> None:
    with store.writer_lock(), pytest.raises(PipelineError, match="another job is writing into"), store.writer_lock():
        pass
