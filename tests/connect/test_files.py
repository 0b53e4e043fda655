"""Topics into files: each record once under any kill; and dead letters and their reprocessing."""

from __future__ import annotations

import asyncio
import io
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ottla.client import Admin, Producer
from ottla.connect.failures import NeedsHelpError
from ottla.connect.redrive import list_dead_letters, redrive
from ottla.testing import Cluster
from tests.connect.connectors import Connector, ottla, wait_until
from tests.connect.in_process import run_sink_to_end


async def produce(broker: Cluster, topic: str, values: Sequence[bytes], partitions: int = 2) -> None:
    async with Admin(broker.bootstrap_servers) as admin:
        if topic not in [each.name for each in await admin.list_topics()]:
            await admin.create_topic(topic, partitions=partitions)
    async with Producer(broker.bootstrap_servers) as producer:
        await producer.send_table(topic, pa.table({"key": [b"k%d" % n for n in range(len(values))], "value": values}))


async def sink(broker: Cluster, topic: str, into: str, **settings: Any) -> dict[str, Any]:
    return await run_sink_to_end(broker.bootstrap_servers, "file-sink", "files", topics=[topic], into=into, **settings)


def lines(directory: Path) -> list[dict[str, Any]]:
    files = sorted(directory.rglob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]


async def test_json_lines_each_once(broker: Cluster, tmp_path: Path, prefix: str) -> None:
    await produce(broker, prefix, [b'{"n": %d}' % n for n in range(100)])
    await sink(broker, prefix, str(tmp_path), records_per_file=30)
    await produce(broker, prefix, [b'{"n":\n %d}' % n for n in range(100, 150)])
    await sink(broker, prefix, str(tmp_path), records_per_file=30)
    await sink(broker, prefix, str(tmp_path))
    found = lines(tmp_path)
    assert sorted(each["value"]["n"] for each in found) == list(range(150))
    assert len({(each["partition"], each["offset"]) for each in found}) == 150
    (tmp_path / prefix / "partition=0").joinpath(f"{5:020d}-{9:020d}.jsonl").write_text("")
    with pytest.raises(NeedsHelpError, match="Choose another directory"):
        await sink(broker, prefix, str(tmp_path))


@pytest.mark.parametrize("kind", ["memory", "S3"])
async def test_parquet_and_an_object_store(broker: Cluster, bucket: str, prefix: str, kind: str) -> None:
    into = f"{bucket if kind == 'S3' else 'memory:/'}/{prefix}"
    values = [b"\x00\xff%d" % n for n in range(50)]
    await produce(broker, prefix, values[:30])
    await sink(broker, prefix, into, format="parquet")
    await produce(broker, prefix, values[30:])
    await sink(broker, prefix, into, format="parquet")
    found: list[bytes] = []
    for content in objects(into).values():
        found += pq.read_table(io.BytesIO(content)).column("value").to_pylist()
    assert sorted(found) == sorted(values)


def objects(place: str) -> dict[str, bytes]:
    """Lists the objects with a new client that has no cache."""
    store, root = fsspec.core.url_to_fs(place)
    store.invalidate_cache()
    return {path: store.cat_file(path) for path in store.find(root)}


async def test_a_killed_sink_writes_each_object_once(
    broker: Cluster, bucket: str, tmp_path: Path, prefix: str, seed: int
) -> None:
    await produce(broker, prefix, [b'{"n": %d}' % n for n in range(20_000)])
    chance, into = random.Random(seed), f"{bucket}/{prefix}"
    command = ["file-sink", "--name", prefix, "--topic", prefix, "--into", into]
    options = ["--records", "500", "--every", "0.2", "-b", broker.bootstrap_servers]

    def written() -> list[int]:
        return [json.loads(line)["value"]["n"] for data in objects(into).values() for line in data.splitlines()]

    def count_written() -> int:
        """Counts objects while the sink works: in this store an object disappears briefly while it is rewritten."""
        try:
            return len(written())
        except FileNotFoundError:
            return -1

    with Connector(tmp_path / "log", *command, *options) as connector:
        for _ in range(2):
            count = count_written()
            wait_until(lambda count=count: count_written() > count, "an object is written")  # type: ignore[misc] # mypy and defaults of a lambda
            await asyncio.sleep(chance.random() / 2)
            connector.kill_worker()
            if count_written() == 20_000:
                break
        wait_until(lambda: count_written() >= 20_000, f"all is written; {connector.log}")
    assert sorted(written()) == list(range(20_000))


async def test_what_is_wrong_is_said(broker: Cluster, tmp_path: Path, prefix: str) -> None:
    with pytest.raises(NeedsHelpError, match=f"ottla topics create {prefix}"):
        await sink(broker, prefix, str(tmp_path))
    with pytest.raises(NeedsHelpError, match="there are jsonl, parquet"):
        await sink(broker, prefix, str(tmp_path), format="csv")
    with pytest.raises(NeedsHelpError, match=r'no setting "colour"; it has .*into'):
        await sink(broker, prefix, str(tmp_path), colour="red")
    with pytest.raises(NeedsHelpError, match="nowhere"):
        await sink(broker, prefix, "nowhere://bucket")


async def test_dead_letters_and_their_way_back(broker: Cluster, tmp_path: Path, prefix: str) -> None:
    servers, dead = broker.bootstrap_servers, f"{prefix}-dead"
    await produce(broker, prefix, [b'{"n": 1}', b"no json", b'{"n": 2}'], partitions=1)
    with pytest.raises(NeedsHelpError, match=r"offset 1: the value is not JSON.*--dead-letters"):
        await sink(broker, prefix, str(tmp_path))
    assert lines(tmp_path) == []
    said = await sink(broker, prefix, str(tmp_path), dead_letters=dead)
    assert said["dead_letters"] == 1
    assert [each["offset"] for each in lines(tmp_path)] == [0, 2]
    [(record, origin)] = [each async for each in list_dead_letters(servers, dead)]
    assert (record.value, origin.at, origin.offset, origin.connector) == (b"no json", (prefix, 0), 1, "files")
    assert "the value is not JSON" in origin.reason
    shown = await asyncio.to_thread(ottla, "dlq", "list", dead, "--json", "-b", servers)
    [letter] = json.loads(shown.stdout)
    assert (letter["origin"], letter["value"]) == ({"topic": prefix, "partition": 0, "offset": 1}, "no json")
    assert await redrive(servers, dead) == 1
    assert await redrive(servers, dead) == 0, "none is sent back twice"
    assert [each async for each in list_dead_letters(servers, dead)] == []
    assert len([each async for each in list_dead_letters(servers, dead, include_redriven=True)]) == 1
    said = await sink(broker, prefix, str(tmp_path), dead_letters=dead)
    assert said["dead_letters"] == 1, "it came back as it was, and is still no JSON"
    again = await asyncio.to_thread(ottla, "dlq", "redrive", dead, "-b", servers)
    assert again.stdout == "1 record sent back\n", again.stderr


async def test_a_killed_sink_writes_each_record_once(broker: Cluster, tmp_path: Path, prefix: str, seed: int) -> None:
    await produce(broker, prefix, [b'{"n": %d}' % n for n in range(30_000)])
    chance = random.Random(seed)
    command = ["file-sink", "--name", prefix, "--topic", prefix, "--into", str(tmp_path / "files")]
    options = ["--records", "500", "--every", "0.2", "-b", broker.bootstrap_servers]
    with Connector(tmp_path / "log", *command, *options) as connector:
        for _ in range(3):
            count = len(list(tmp_path.rglob("*.jsonl")))
            wait_until(lambda count=count: len(list(tmp_path.rglob("*.jsonl"))) > count, "a file is written")  # type: ignore[misc] # mypy and defaults of a lambda
            await asyncio.sleep(chance.random() / 2)
            connector.kill_worker()
            if len(lines(tmp_path)) == 30_000:
                break
        wait_until(lambda: len(lines(tmp_path)) >= 30_000, f"all is written; {connector.log}")
    assert sorted(each["value"]["n"] for each in lines(tmp_path)) == list(range(30_000))
