"""Syncing of files and directory entries."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ottla.file_sync import sync_directory, sync_path


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    found: list[Path] = []
    monkeypatch.setattr(os, "fsync", lambda handle: found.append(Path(os.readlink(f"/proc/self/fd/{handle}"))))
    return found


def test_files_and_directories_are_synced(tmp_path: Path, synced: list[Path]) -> None:
    file = tmp_path / "file"
    file.touch()
    sync_path(file)
    sync_path(str(tmp_path))
    sync_directory(tmp_path)
    assert synced == [file, tmp_path, tmp_path]


def test_a_file_is_not_synced_as_a_directory(tmp_path: Path, synced: list[Path]) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(NotADirectoryError):
        sync_directory(file)
    assert synced == []


def test_a_handle_is_closed_even_if_the_sync_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(handle: int) -> None:
        raise OSError(f"no space for {handle}")

    monkeypatch.setattr(os, "fsync", fsync)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="no space"):
        sync_path(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == len(before)
