"""Writers, the connector and brokers killed at random; then 20 moments restored and compared."""

from __future__ import annotations

from pathlib import Path

from tests.connect.sqlite.campaign import run


def test_every_moment_is_restored_as_it_was(tmp_path: Path, seed: int) -> None:
    verdict, summary = run(tmp_path, seed, 150, points=20)
    print(summary)
    assert verdict.restored == 20 or verdict.transactions < 20
