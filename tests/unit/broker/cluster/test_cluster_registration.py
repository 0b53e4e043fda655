"""How a broker brings its image up to date when it registers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ottla.broker.cluster.membership import Membership
from ottla.broker.cluster.topic_placement import TopicPlacement
from ottla.machines.controller.image import ClusterImage
from ottla.sim.world import SimWorld
from tests.support.sim_cluster import ClusterBench

TOPIC = "orders"


@pytest.fixture
def bench() -> Iterator[ClusterBench]:
    with SimWorld(2) as world:
        yield ClusterBench(world)


class Loads:
    """Counts how often a whole image is loaded and placed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.images = self.placed = 0
        load, place_all = ClusterImage.load.__func__, TopicPlacement.place_all  # type: ignore[attr-defined] # it is a class method

        def loading(cls: type[ClusterImage], entries: Any) -> ClusterImage:
            self.images += 1
            loaded: ClusterImage = load(cls, entries)
            return loaded

        def placing(placement: TopicPlacement) -> None:
            self.placed += 1
            place_all(placement)

        monkeypatch.setattr(ClusterImage, "load", classmethod(loading))
        monkeypatch.setattr(TopicPlacement, "place_all", placing)


def test_a_start_loads_the_image_once(bench: ClusterBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """And places all topics twice: to answer requests for metadata, and to take roles."""
    bench.run(bench.create(TOPIC))
    bench.until_in_sync(TOPIC)
    bench.kill(3)
    bench.until(lambda: 3 not in bench.isr(TOPIC))
    loads = Loads(monkeypatch)
    bench.boot(3)
    bench.until_in_sync(TOPIC)
    assert (loads.images, loads.placed) == (1, 2)


def test_a_start_loads_the_image_again_if_the_history_is_compacted(
    bench: ClusterBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.run(bench.create(TOPIC))
    bench.until_in_sync(TOPIC)
    bench.kill(3)
    bench.until(lambda: 3 not in bench.isr(TOPIC))
    loads = Loads(monkeypatch)
    original = Membership._catch_up

    async def compacted(membership: Membership, revision: Any) -> None:
        bench.store.forget_history()
        await original(membership, revision)

    monkeypatch.setattr(Membership, "_catch_up", compacted)
    bench.boot(3)
    bench.until_in_sync(TOPIC)
    assert loads.images >= 2
    assert bench.cluster(3).membership.image.registration(3) is not None
