"""What the real disk promises about syncs, on a real file system that loses the power."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.broker.adapters.files import RealFileSystem
from ottla.ports import FileSystem
from tests.support.real_power_cut import CannotMountError, PowerlessDisk

FILES: FileSystem = RealFileSystem()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[PowerlessDisk]:
    disk = None
    try:
        try:
            disk = PowerlessDisk(tmp_path / "power", size_bytes=16 << 20)
        except CannotMountError as why:
            pytest.skip(f"needs the right to mount an ext4 file system: {why}")
        yield disk
    finally:
        if disk is not None:
            disk.close()


def begin(disk: PowerlessDisk) -> Path:
    """A directory with the files `a` and `b`, all of it durable."""
    directory = disk.path / "directory"
    directory.mkdir()
    for name in ("a", "b"):
        (directory / name).write_bytes(name.encode())
    os.sync()
    return directory


def after_power_cut(disk: PowerlessDisk) -> dict[str, bytes]:
    directory = disk.cut_power() / "directory"
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir()) if path.is_file()}


def test_a_power_cut_takes_what_is_not_synced(disk: PowerlessDisk) -> None:
    """Otherwise the tests below show nothing."""
    directory = begin(disk)
    FILES.rename(f"{directory}/a", f"{directory}/renamed")
    FILES.remove(f"{directory}/b")
    file = FILES.open(f"{directory}/new", create=True)
    file.write_at(0, [b"lost"])
    assert FILES.list_dir(str(directory)) == ["new", "renamed"]
    assert after_power_cut(disk) == {"a": b"a", "b": b"b"}
    file.close()


def test_synced_names_survive_a_power_cut(disk: PowerlessDisk) -> None:
    directory = begin(disk)
    FILES.rename(f"{directory}/a", f"{directory}/renamed")
    FILES.sync_dir(str(directory))
    assert after_power_cut(disk) == {"b": b"b", "renamed": b"a"}


def test_a_removed_file_does_not_come_back_once_its_directory_is_synced(disk: PowerlessDisk) -> None:
    directory = begin(disk)
    FILES.remove(f"{directory}/a")
    FILES.sync_dir(str(directory))
    assert after_power_cut(disk) == {"b": b"b"}


def test_synced_data_survives_a_power_cut(disk: PowerlessDisk) -> None:
    directory = begin(disk)
    file = FILES.open(f"{directory}/a")
    file.write_at(0, [b"synced"])
    file.sync()
    file.write_at(6, [b" lost"])
    assert after_power_cut(disk)["a"] == b"synced"
    file.close()


def test_a_durable_file_needs_no_sync(disk: PowerlessDisk) -> None:
    directory = begin(disk)
    file = FILES.open(f"{directory}/journal", create=True)
    file.write_at(0, [bytes(8192)])
    file.sync()
    FILES.sync_dir(str(directory))
    durable = FILES.open_durable(f"{directory}/journal")
    durable.write_at(4096, [b"x" * 4096])
    assert after_power_cut(disk)["journal"] == bytes(4096) + b"x" * 4096
    durable.close()
    file.close()


def test_a_replaced_file_is_durable(disk: PowerlessDisk) -> None:
    directory = begin(disk)
    FILES.replace_file(f"{directory}/a", b"replaced")
    assert after_power_cut(disk) == {"a": b"replaced", "b": b"b"}


# -- without the right to mount ----------------------------------------------------------------------------------------


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Syncs and renames, with the names of the files."""
    found: list[tuple[str, str]] = []
    rename = os.rename

    def synced(handle: int) -> None:
        found.append(("sync", os.path.basename(os.readlink(f"/proc/self/fd/{handle}"))))

    def renamed(source: str, target: str) -> None:
        found.append(("rename", os.path.basename(target)))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "fdatasync", synced)
    monkeypatch.setattr(os, "rename", renamed)
    return found


def test_a_directory_is_synced(tmp_path: Path, calls: list[tuple[str, str]]) -> None:
    FILES.sync_dir(str(tmp_path))
    assert calls == [("sync", tmp_path.name)]


def test_a_file_is_replaced_in_three_steps(tmp_path: Path, calls: list[tuple[str, str]]) -> None:
    FILES.replace_file(str(tmp_path / "a"), b"new")
    assert calls == [("sync", "a.tmp"), ("rename", "a"), ("sync", tmp_path.name)]
