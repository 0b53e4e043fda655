"""The stores, each started once; a world of its own in it for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.conformance.coordination.worlds import SimStoreWorld, SqliteWorld, World

KINDS = ("sqlite", "sim")


@pytest.fixture(params=KINDS)
async def world(request: pytest.FixtureRequest, seed: int, tmp_path: Path) -> AsyncIterator[World]:
    made = make_world(request.param, seed, tmp_path)
    yield made
    await made.close()


def make_world(kind: str, seed: int, tmp_path: Path) -> World:
    match kind:
        case "sqlite":
            return SqliteWorld(tmp_path)
        case _:
            return SimStoreWorld(seed)
