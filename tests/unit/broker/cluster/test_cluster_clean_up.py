"""Cleanup of topics that are deleted, unknown, or incompletely created."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from uuid import UUID

import pytest

from ottla.broker.storage.data_layout import DataLayout, log_name
from ottla.client.admin.admin import Admin
from ottla.client.errors import ClientError
from ottla.coordination.port import Batch
from ottla.protocol.model.ids import LogKey, PartitionIndex, TopicId
from ottla.sim.world import SimWorld
from tests.support.sim_cluster import ClusterBench


@pytest.fixture
def bench() -> Iterator[ClusterBench]:
    with SimWorld(1) as world:
        yield ClusterBench(world, properties={"broker.session.timeout.ms": "10000"})


async def delete(bench: ClusterBench, topic: str) -> None:
    async with Admin(bench.bootstrap) as admin:
        await admin.delete_topic(topic)


def stored(bench: ClusterBench, prefix: str) -> list[str]:
    return [entry.key for entry in bench.store.snapshot(prefix).entries]


def places(bench: ClusterBench, number: int) -> DataLayout:
    return DataLayout(bench.broker(number).context.log_dir)


def logs(bench: ClusterBench, number: int) -> list[str]:
    return bench.host(number).disk.files.list_dir(places(bench, number).logs)


def set_aside(bench: ClusterBench, number: int) -> list[str]:
    files, directory = bench.host(number).disk.files, places(bench, number).set_aside
    return files.list_dir(directory) if files.exists(directory) else []


@pytest.mark.parametrize("durability", ["disk", "cache", "memory"])
def test_a_deleted_topic_is_remembered_until_nothing_is_left_of_it(bench: ClusterBench, durability: str) -> None:
    bench.run(bench.create("orders", ottla_durability=durability))
    bench.until_in_sync("orders")
    bench.run(bench.write("orders", [b"1"]))
    bench.run(delete(bench, "orders"))
    bench.until(lambda: not stored(bench, "deleted/") and not stored(bench, "partitions/"))
    assert [logs(bench, number) for number in bench.ids] == [[], [], []]


def test_the_log_of_a_deleted_topic_that_comes_back_is_removed(bench: ClusterBench) -> None:
    bench.run(bench.create("orders"))
    bench.until_in_sync("orders")
    bench.run(bench.write("orders", [b"1"]))
    bench.kill(2)
    bench.until_in_sync("orders", count=2)
    bench.run(delete(bench, "orders"))
    bench.world.run_for(20)
    assert len(stored(bench, "deleted/")) == 1, "broker 2 has not removed its log yet"
    bench.boot(2)
    bench.until(lambda: not stored(bench, "deleted/"))
    assert logs(bench, 2) == []
    assert set_aside(bench, 2) == []


def test_the_log_of_an_unknown_topic_is_set_aside(bench: ClusterBench) -> None:
    stranger = log_name(LogKey(TopicId(UUID(int=12345)), PartitionIndex(0)))
    directory = f"{places(bench, 2).logs}/{stranger}"
    bench.kill(2)
    files = bench.host(2).disk.files
    files.make_dirs(directory)
    files.replace_file(f"{directory}/note", b"somebody's")
    files.sync_dir(directory)
    bench.boot(2)
    assert logs(bench, 2) == []
    assert set_aside(bench, 2) == [stranger]
    assert files.read_file(f"{places(bench, 2).set_aside}/{stranger}/note") == b"somebody's"


def test_a_creation_that_was_cut_short_leaves_nothing() -> None:
    """The store is unavailable after some of the writes; the creating broker stays registered, with a live lease."""
    with SimWorld(1) as world:
        check_a_creation_cut_short(ClusterBench(world, properties={"broker.session.timeout.ms": "90000"}))


def check_a_creation_cut_short(bench: ClusterBench) -> None:
    was_cut: list[str] = []

    def cut(batch: Batch) -> None:
        begun = [change.key for change in batch.changes if change.key.startswith("partitions/") and change.entry]
        if begun and not was_cut:
            was_cut.append(begun[0].split("/")[1])
            bench.store.stop()
            bench.world.after(30, bench.store.start)

    bench.store.observers.append(cut)
    with contextlib.suppress(ClientError):  # or it was retried as another topic
        bench.run(bench.create("many", partitions=300))
    (topic_id,) = was_cut
    bench.until(lambda: not stored(bench, f"creating/{topic_id}") and not stored(bench, f"partitions/{topic_id}"))
    assert all(bench.programs[number].broker_is_in() for number in bench.ids)
    with contextlib.suppress(ClientError):
        bench.run(bench.create("many", partitions=300))
    assert len(stored(bench, "partitions/")) == 300
    assert not stored(bench, "creating/")
