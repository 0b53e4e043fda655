"""Kills writers, the connector and brokers at random; then restores 20 points in time and compares them."""

from __future__ import annotations

from pathlib import Path

from tests.connect.sqlite.campaign import run


def test_every_moment_is_restored_as_it_was(tmp_path: Path, seed: int) -> None:
    verdict, summary = run(tmp_path, seed, 100, points=20)
    print(summary)
    assert verdict.restored == 20 or verdict.transactions < 20
