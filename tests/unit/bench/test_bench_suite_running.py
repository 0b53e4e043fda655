"""Operations of the suite on brokers that it has started."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from ottla.bench.suite.running_targets import drop_page_cache_of


def test_a_directory_that_goes_meanwhile_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker may rename the directory of a deleted topic and remove it at any time."""
    for name in ("kept", "gone"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "00000000000000000000.log").write_bytes(b"records")
    dropped: list[str] = []
    advise = os.posix_fadvise

    def note(descriptor: int, offset: int, length: int, advice: int) -> None:
        dropped.append(os.path.basename(os.path.dirname(os.readlink(f"/proc/self/fd/{descriptor}"))))
        advise(descriptor, offset, length, advice)

    scan = os.scandir

    def rename_and_scan(path: Any) -> Any:
        if os.path.basename(path) == "gone":
            os.rename(path, f"{path}-delete")
        return scan(path)

    monkeypatch.setattr(os, "posix_fadvise", note)
    monkeypatch.setattr(os, "scandir", rename_and_scan)
    drop_page_cache_of(tmp_path)
    assert dropped == ["kept"]


def test_pipes_and_sockets_have_no_pages_to_drop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers that coordinate through SQLite have named pipes beside its database."""
    (tmp_path / "00000000000000000000.log").write_bytes(b"records")
    os.mkfifo(tmp_path / "bell")
    monkeypatch.chdir(tmp_path)
    dropped: list[str] = []
    advise = os.posix_fadvise

    def note(descriptor: int, offset: int, length: int, advice: int) -> None:
        advise(descriptor, offset, length, advice)
        dropped.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))

    monkeypatch.setattr(os, "posix_fadvise", note)
    listener = os.open(tmp_path / "bell", os.O_RDWR)
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("socket")
            drop_page_cache_of(tmp_path)
    finally:
        os.close(listener)
    assert dropped == ["00000000000000000000.log"]
