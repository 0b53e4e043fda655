"""The stores, each started once; a world of its own in it for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.conformance.coordination.worlds import SqliteWorld, World

KINDS = ("sqlite",)


@pytest.fixture(params=KINDS)
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    made = make_world(request.param, request, tmp_path)
    yield made
    await made.close()


def make_world(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return SqliteWorld(tmp_path)
