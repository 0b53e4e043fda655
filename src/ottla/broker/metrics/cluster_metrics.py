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
    is_controller = broker.metadata.controller_id == broker.node_id
    offline = 0
    if is_controller:
        for topic in broker.topics:
            offline += sum(layout.leader < 0 for layout in topic.layouts)
            yield
    page.add(declared.CONTROLLER, int(is_controller))
    page.add(declared.OFFLINE, offline)
    page.add(declared.LIVE_BROKERS, len(broker.metadata.nodes()))
    state = broker.metadata.coordination_state()
    if state is None:
        return
    page.add(declared.REASSIGNING, state.reassigning_count)
    page.add(declared.LEASE_HELD, int(state.has_lease))
    page.add(declared.COORDINATION_REVISION, state.revision)
    store = state.store
    if isinstance(store, MeteredCoordination):
        for call, found in store.answered_s.items():
            page.add_histogram(declared.COORDINATION_SECONDS, found, call)
        for (call, error), count in store.failures.items():
            page.add(declared.COORDINATION_ERRORS, count, call, error)
