"""The order in which a broker process starts and stops its parts."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from ottla.broker.app import BrokerSettings, RunningBroker, start_broker
from ottla.broker.cluster.identity import CLEAN_SHUTDOWN_FILE
from ottla.client import Admin, Producer
from ottla.protocol.model.durability import Durability
from ottla.protocol.model.group_keys import DEVELOPMENT_DEFAULTS

VALUES = [b"value %03d of the page cache" % number for number in range(50)]
START_S = 30.0


async def started(tmp_path: Path) -> RunningBroker:
    """A cluster of one broker. Its disk keeps what is not synced in memory, so that the directory shows what a power
    cut would leave."""
    settings = BrokerSettings(
        data_dir=str(tmp_path / "data"),
        port=0,
        storage=Durability.CACHE,
        properties={
            **DEVELOPMENT_DEFAULTS,
            "node.id": "1",
            "ottla.coordination": f"sqlite:{tmp_path / 'coordination'}",
            "ottla.flush.interval.ms": "3600000",
        },
        disk="volatile",
    )
    return await start_broker(settings)


def durable_values(directory: Path) -> list[bytes]:
    stored = b"".join(path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file())
    return [value for value in VALUES if value in stored]


async def write(bootstrap: str) -> None:
    async with Admin(bootstrap) as admin:
        await admin.create_topic("cached", partitions=1)
    async with Producer(bootstrap) as producer:
        for value in VALUES:
            await producer.send("cached", value, partition=0)


async def test_a_shutdown_is_noted_as_clean_only_when_everything_is_durable(tmp_path: Path) -> None:
    """The note makes other brokers believe that the page cache survived a power cut (safety: lost-incarnation)."""
    running = await started(tmp_path)
    files = running.broker.context.shared.disk.files
    replace_file = files.replace_file
    kept = tmp_path / "as of the note"

    def replace_then_keep(path: str, data: bytes) -> None:
        replace_file(path, data)
        if path.endswith(CLEAN_SHUTDOWN_FILE):
            shutil.copytree(tmp_path / "data", kept)

    files.replace_file = replace_then_keep  # type: ignore[method-assign]  # to look at that moment
    try:
        await asyncio.wait_for(write(running.bootstrap), START_S)
        assert durable_values(tmp_path / "data") == [], "otherwise the test shows nothing"
    finally:
        await running.stop()
    assert (kept / CLEAN_SHUTDOWN_FILE).exists()
    assert durable_values(kept) == VALUES
