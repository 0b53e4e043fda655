"""Collects metrics about the broker's role in its cluster and about the coordination store."""

from __future__ import annotations

from collections.abc import Iterator

from ottla.broker.metrics import definitions as declared
from ottla.broker.metrics.coordination import MeteredCoordination
from ottla.broker.metrics.page import Page
from ottla.broker.metrics.scrape_target import ScrapeTarget


def cluster(watched: ScrapeTarget, page: Page) -> Iterator[None]:
    """Adds the metrics of the cluster. Those of offline and reassigning partitions are 0 except on the controller."""
    broker = watched.broker
    is_controller = broker.controller_id == broker.node_id
    offline = 0
    if is_controller:
        for topic in broker.topics:
            offline += sum(layout.leader < 0 for layout in topic.layouts)
            yield
    page.add(declared.CONTROLLER, int(is_controller))
    page.add(declared.OFFLINE, offline)
    page.add(declared.LIVE_BROKERS, len(broker.nodes()))
    if broker.cluster is None:
        return
    membership = broker.cluster.membership
    page.add(declared.REASSIGNING, sum(1 for _ in membership.image.reassigning()) if is_controller else 0)
    page.add(declared.LEASE_HELD, int(membership.is_alive))
    page.add(declared.COORDINATION_REVISION, membership.revision)
    store = membership.store
    if isinstance(store, MeteredCoordination):
        for call, found in store.answered_s.items():
            page.add_histogram(declared.COORDINATION_SECONDS, found, call)
        for (call, error), count in store.failures.items():
            page.add(declared.COORDINATION_ERRORS, count, call, error)
