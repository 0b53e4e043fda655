"""A whole broker as the program of a simulated host: the real server, dispatch and broker on a simulated disk.

    catalog = SimCatalog()
    host = world.host("broker", program=BrokerProgram(catalog, {"log.retention.ms": "-1"}))

It wires simulated adapters the way `app.py` wires real ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from ottla.broker.api.request_handler import BrokerRequestHandler
from ottla.broker.broker import Broker
from ottla.broker.context import BrokerContext
from ottla.broker.endpoints import Endpoint
from ottla.broker.server.server import Server
from ottla.broker.standalone.metadata import StandaloneMetadata
from ottla.broker.storage.journal import JournalLimits
from ottla.broker.storage.log_resources import LogResources, MemoryBudget
from ottla.broker.storage.tail_cache import TailCache
from ottla.broker.topics.log_store import LogStore
from ottla.protocol.model.broker_config import parse_broker_config
from ottla.protocol.model.errors import Refused
from ottla.sim.catalog import SimCatalog
from ottla.sim.hosts import SimHost

PORT = 9092
DATA_DIR = "/data"
JOURNAL_LIMITS = JournalLimits(
    ring_bytes_max=512 * 1024, file_bytes_max=64 * 1024, group_bytes_max=32 * 1024, early_bytes=1024
)


def new_context(host: SimHost, properties: Mapping[str, str], journal_id: bytes, reports: list[str]) -> BrokerContext:
    """Creates the context of a broker on the disk and clock of a simulated host."""
    config = parse_broker_config(properties)
    assert not isinstance(config, Refused), config
    shared = LogResources(
        disk=host.disk,
        clock=host.clock,
        tail=TailCache(config.tail_cache_bytes, config.unwritten_max_bytes),
        memory=MemoryBudget(config.memory_max_bytes),
        report=reports.append,
    )
    store = LogStore(shared, DATA_DIR, journal_id, JOURNAL_LIMITS)
    return BrokerContext(config, shared, store, DATA_DIR)


class BrokerProgram:
    """Runs a single broker. The catalog outlives the process, as a database file does. `on_disk` may inject faults into
    the disk of each new process."""

    def __init__(
        self,
        catalog: SimCatalog,
        properties: Mapping[str, str],
        *,
        on_disk: Callable[[SimHost], None] | None = None,
    ) -> None:
        self.catalog = catalog
        self.properties = dict(properties)
        self.on_disk = on_disk
        self.reports: list[str] = []
        self.broker: Broker | None = None
        self.server: Server | None = None

    async def __call__(self, host: SimHost) -> None:
        if not host.has_disk:
            host.add_disk()
        if self.on_disk is not None:
            self.on_disk(host)
        context = new_context(host, self.properties, bytes(range(16)), self.reports)
        metadata = StandaloneMetadata(context, self.catalog)
        broker = self.broker = Broker(context, metadata)
        metadata.recover()
        broker.start()
        self.server = Server(BrokerRequestHandler(broker), broker.config)
        _, port = await self.server.start(host.name, PORT)
        context.endpoints.clients = Endpoint(host.name, port)
        await asyncio.get_running_loop().create_future()  # until the host is killed or loses power
