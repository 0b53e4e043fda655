"""The result of a restore is on stable storage: each file, each directory, and the name of the whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ottla.connect.postgres_wal.data_directory import sync_tree


def test_a_restored_directory_is_synced_with_all_that_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = tmp_path / "restored"
    (base / "global" / "empty").mkdir(parents=True)
    files = [base / "PG_VERSION", base / "global" / "pg_control"]
    for file in files:
        file.write_bytes(b"x")
    synced: set[Path] = set()
    monkeypatch.setattr(os, "fsync", lambda handle: synced.add(Path(os.readlink(f"/proc/self/fd/{handle}"))))
    sync_tree(base)
    assert synced == {*files, base, base / "global", base / "global" / "empty", tmp_path}
