"""The snapshot store: snapshots are complete or absent, damage is detected and reported, the previous one is used."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ottla.recovery import (
    DamagedSnapshotError,
    LogTrimmedError,
    Position,
    RowTables,
    Snapshot,
    SnapshotStore,
    put,
    recover,
)
from tests.support.object_store import s3_bucket
from tests.support.recovery_memory_log import MemoryLog, Shared

FRAMES = [b"one" * 1000, b"two", b"three" * 300_000]


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def readable(store: SnapshotStore) -> list[Snapshot]:
    return [each for each in store.snapshots() if isinstance(each, Snapshot)]


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with s3_bucket() as address:
        yield address


@pytest.fixture(params=["directory", "memory", "S3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "directory":
        return str(tmp_path / "snapshots")
    scheme = "memory:/" if request.param == "memory" else str(request.getfixturevalue("bucket"))
    return f"{scheme}/{uuid.uuid4().hex}"


def test_what_was_published_is_there(place: str) -> None:
    store = SnapshotStore(place)
    assert readable(store) == []
    published = store.publish(iter(FRAMES), Position(7, 5, 3, 1000))
    assert readable(SnapshotStore(place)) == [published]
    assert list(store.frames(published)) == FRAMES
    assert published.position == Position(7, 5, 3, 1000)


def test_an_empty_state_is_a_snapshot(place: str) -> None:
    store, tables = SnapshotStore(place), RowTables()
    snapshot = store.publish(tables.dump(), Position())
    assert list(store.frames(snapshot)) == []


def test_old_ones_are_pruned_and_the_newest_come_first(place: str) -> None:
    store = SnapshotStore(place, keep=2)
    for offset in (10, 9, 30, 20):
        store.publish([b"%d" % offset], Position(offset, offset))
    assert [each.position.next_offset for each in readable(store)] == [30, 20]
    assert [list(store.frames(each)) for each in readable(store)] == [[b"30"], [b"20"]]
    assert store.trim_offset() == 20


def test_a_writer_that_fails_leaves_no_snapshot(place: str) -> None:
    store = SnapshotStore(place)

    def frames() -> Iterator[bytes]:
        yield b"first"
        raise RuntimeError("the state went away")

    with pytest.raises(RuntimeError):
        store.publish(frames(), Position(5, 5))
    assert list(store.snapshots()) == []


def test_what_a_dead_writer_left_goes_with_the_next_ones(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path, keep=1)
    for left in (f"{5:020d}-dead.data", f"{6:020d}-dead.data.tmp-1", f"{9:020d}-alive.data.tmp-2"):
        (tmp_path / left).write_bytes(b"half")
    snapshot = store.publish([b"x"], Position(8, 8))
    assert names(tmp_path) == [f"{snapshot.name}.data", f"{snapshot.name}.json", f"{9:020d}-alive.data.tmp-2"]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "a bit": lambda data: data[:100] + bytes([data[100] ^ 1]) + data[101:],
    "its end is missing": lambda data: data[:-1],
    "its last frame is missing": lambda data: data[: 8 + 3000 + 8 + 3],
    "nothing is left": lambda data: b"",
    "more than there was": lambda data: data + b"\0",
    "a frame twice": lambda data: data[:3008] + data,
    "a length of gigabytes": lambda data: b"\xff\xff\xff\x3f" + data[4:],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_data_is_found(tmp_path: Path, damage: str) -> None:
    store = SnapshotStore(tmp_path)
    snapshot = store.publish(FRAMES, Position(7, 7))
    data = tmp_path / f"{snapshot.name}.data"
    data.write_bytes(DAMAGES[damage](data.read_bytes()))
    with pytest.raises(DamagedSnapshotError, match=snapshot.name):
        store.verify(snapshot)
    assert store.trim_offset() is None


@pytest.mark.parametrize("content", [b"", b"[", b"{}", b"[{}, 0]", None])
def test_a_damaged_manifest_is_named(tmp_path: Path, content: bytes | None) -> None:
    store = SnapshotStore(tmp_path)
    snapshot = store.publish(FRAMES, Position(7, 7))
    manifest = tmp_path / f"{snapshot.name}.json"
    whole = manifest.read_bytes()
    manifest.write_bytes(whole.replace(b'"next_offset": 7', b'"next_offset": 8') if content is None else content)
    (found,) = store.snapshots()
    assert isinstance(found, DamagedSnapshotError)
    assert snapshot.name in str(found)


async def test_the_one_before_is_used_and_the_damaged_one_is_named(tmp_path: Path) -> None:
    shared, store = Shared(), SnapshotStore(tmp_path)
    log, tables = MemoryLog(shared), RowTables()
    published = []
    for number in range(2):
        shared.add(put(b"%d" % number, b"image"))
        taken = await recover(log, tables)
        published.append(store.publish(tables.dump(), taken.position))
    shared.add(put(b"2", b"image"))
    (tmp_path / f"{published[1].name}.data").unlink()
    found = RowTables()
    recovered = await recover(log, found, snapshots=store)
    assert recovered.snapshot == published[0]
    assert [each.name for each in recovered.damaged] == [published[1].name]
    assert sorted(found.rows) == [b"0", b"1", b"2"]
    (tmp_path / f"{published[0].name}.data").write_bytes(b"no")
    recovered = await recover(log, found, snapshots=store)
    assert recovered.snapshot is None
    assert len(recovered.damaged) == 2
    assert sorted(found.rows) == [b"0", b"1", b"2"]
    await log.trim(1)
    with pytest.raises(LogTrimmedError, match=f"(?s){published[1].name}.*{published[0].name}"):
        await recover(log, found, snapshots=store)
    assert sorted(found.rows) == [b"0", b"1", b"2"], "what was there stays"


def test_the_manifest_comes_last_and_everything_is_synced_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut at any time never leaves a manifest whose data is not on the disk."""
    happened: list[str] = []

    def kind(path: str) -> str:
        return "directory" if os.path.isdir(path) else "manifest" if ".json" in path else "data"

    def fsync(handle: int) -> None:
        happened.append(f"sync {kind(os.readlink(f'/proc/self/fd/{handle}'))}")

    def rename(source: Path, target: Path) -> None:
        happened.append(f"rename {kind(str(target))}")
        os.replace(source, target)

    store = SnapshotStore(tmp_path)
    monkeypatch.setattr("ottla.recovery.snapshot_files.os.fsync", fsync)
    monkeypatch.setattr("ottla.recovery.snapshot_files.os.rename", rename)
    store.publish(FRAMES, Position(1, 1))
    steps = ["sync data", "rename data", "sync directory", "sync manifest", "rename manifest", "sync directory"]
    assert happened == steps


def test_of_several_at_one_offset_the_last_that_was_written_stays(tmp_path: Path) -> None:
    """A snapshot taken again after damage must replace the damaged one."""
    store = SnapshotStore(tmp_path, keep=1)
    for number in range(12):
        last = store.publish([b"%d" % number], Position(5, 5))
        assert [each.name for each in readable(store)] == [last.name]
        assert names(tmp_path) == [f"{last.name}.data", f"{last.name}.json"]
