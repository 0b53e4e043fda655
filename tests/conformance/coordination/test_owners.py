"""Lease owners as processes: killed, stopped, and with a blocked event loop."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conformance.coordination.reading import reader_of
from tests.conformance.coordination.stores import Place

TTL_MS = 1000
KINDS = ("sqlite", "etcd", "zookeeper")


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "sqlite":
        return Place("sqlite", str(tmp_path))
    return Place(request.param, request.getfixturevalue(request.param).address)


class Owner:
    def __init__(self, place: Place, key: str, ttl_ms: int) -> None:
        module = "tests.conformance.coordination.owner"
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, place.kind, place.where, key, str(ttl_ms)], stdout=subprocess.PIPE, text=True
        )

    async def says(self) -> str:
        assert self._process.stdout is not None
        return (await asyncio.to_thread(self._process.stdout.readline)).strip()

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self) -> None:
        self._process.send_signal(signal.SIGCONT)
        self._process.kill()
        self._process.communicate()


@contextmanager
def owner_of(place: Place, key: str, ttl_ms: int = TTL_MS) -> Iterator[Owner]:
    owner = Owner(place, key, ttl_ms)
    try:
        yield owner
    finally:
        owner.end()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP, signal.SIGUSR1], ids=["killed", "stopped", "hangs"])
async def test_an_owner_that_does_not_renew_loses_its_lease(
    place: Place, number: signal.Signals, request: pytest.FixtureRequest
) -> None:
    key = request.node.name
    watcher = await place.client()
    async with reader_of(watcher, key) as reader:
        with owner_of(place, key) as owner, owner_of(place, f"{key} other") as other:
            assert await owner.says() == "owns"
            assert await other.says() == "owns"
            owner.send(number)
            await reader.until(lambda: bool(reader.deleted_keys()))
            assert reader.deleted_keys() == [key], "only the lease of the one that was disturbed"
            if number is not signal.SIGKILL:
                owner.send(signal.SIGCONT if number is signal.SIGSTOP else signal.SIGUSR2)
                assert await owner.says() == "lost"
            assert await watcher.get(f"{key} other") is not None
    await watcher.close()


async def test_with_sqlite_a_kill_is_noticed_long_before_the_lease_is_over(tmp_path: Path) -> None:
    place = Place("sqlite", str(tmp_path))
    watcher = await place.client()
    async with reader_of(watcher) as reader:
        with owner_of(place, "key", ttl_ms=3_600_000) as owner:
            assert await owner.says() == "owns"
            owner.send(signal.SIGKILL)
            await reader.until(lambda: reader.deleted_keys() == ["key"])
    await watcher.close()
