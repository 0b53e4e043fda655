"""The part of the composition root that only brokers of a cluster need: imported if a coordination store is
configured."""

from __future__ import annotations

import asyncio
import logging
import socket
from uuid import uuid4

from ottla.broker.adapters.clock import RealClock
from ottla.broker.adapters.data_dir import DataDirectory, new_cluster_id
from ottla.broker.broker import Broker
from ottla.broker.cluster.identity import agree_on_cluster_id, find_cluster_id, take_clean_shutdown
from ottla.broker.cluster.membership import BrokerIdInUseError, Membership
from ottla.broker.cluster.metadata import ClusterMetadata
from ottla.broker.context import BrokerContext
from ottla.broker.metrics.coordination import MeteredCoordination
from ottla.coordination.port import Coordination, UnavailableError
from ottla.coordination.sqlite.lease_files import boot_id
from ottla.coordination.store_factory import BadCoordinationError, open_coordination
from ottla.machines.controller.broker_requests import BrokerStart
from ottla.protocol.model.broker_config import BrokerConfig

log = logging.getLogger("ottla")

COORDINATION_RETRY_S = 0.5
COORDINATION_PATIENCE_S = 2.0
"""Time after which a message says what the broker waits for: an attempt to reach a machine that does not answer is
slow."""


class ClusterStart:
    """A broker that is joining its cluster. Created by `begin`; then call `recover`, listen, and call `join`."""

    def __init__(self, config: BrokerConfig, clock: RealClock, store: Coordination, cluster_id: str) -> None:
        self._config = config
        self._clock = clock
        self.store = store
        self.cluster_id = cluster_id
        self._clean_epoch: int | None = None
        self._context: BrokerContext | None = None
        self._cluster: ClusterMetadata | None = None

    @classmethod
    async def begin(cls, config: BrokerConfig, clock: RealClock, identity: DataDirectory | None) -> ClusterStart:
        """Waits for the coordination store. Raises BadCoordinationError.

        Only a broker without data starts a new cluster: a broker with data already belongs to one.
        """
        assert config.coordination is not None
        store = MeteredCoordination(await _opened(config.coordination, clock), clock)
        try:
            if identity is None:
                cluster_id = await agree_on_cluster_id(store, new_cluster_id())
            elif (found := await find_cluster_id(store)) is not None:
                cluster_id = found
            else:
                raise BadCoordinationError(_without_a_cluster(config.coordination, identity))
        except BaseException:
            await store.close()
            raise
        return cls(config, clock, store, cluster_id)

    async def recover(self, context: BrokerContext) -> Broker:
        """Creates the broker and recovers its logs."""
        config = self._config
        self._context = context
        self._clean_epoch = take_clean_shutdown(context.shared.disk.files, context.log_dir)
        membership = Membership(self.store, self._clock, config.broker_session_timeout_ms)
        cluster = self._cluster = ClusterMetadata(
            context, membership, self.cluster_id, allow_shared_machine=config.host_shared
        )
        broker = Broker(context, cluster)
        await cluster.recover()
        broker.start()
        cluster.open()
        return broker

    async def join(self, directory_id: str, *, loses_pages: bool = False) -> None:
        """Registers the broker. `loses_pages` means that an earlier process lost its unsynced pages although the
        machine did not reboot. Raises BadCoordinationError."""
        assert self._context is not None, "the broker is recovered first"
        assert self._cluster is not None
        config, endpoints = self._config, self._context.endpoints
        start = BrokerStart(
            broker_id=config.node_id,
            host=endpoints.clients.host,
            port=endpoints.clients.port,
            machine=config.host or socket.gethostname(),
            directory_id=directory_id,
            boot_id=uuid4().hex if loses_pages else boot_id(),
            rack=config.broker_rack,
            wal_port=endpoints.wal_port,
            inter_broker=endpoints.brokers,
            endpoints=tuple((name, *address) for name, address in endpoints.by_listener.items()),
            clean_shutdown_epoch=self._clean_epoch,
            damaged=self._cluster.damaged_classes(),
        )
        try:
            await self._cluster.join(start)
        except BrokerIdInUseError as failure:
            raise BadCoordinationError(
                f"node.id={config.node_id} is in use. {failure} Choose another node.id, or stop the other broker."
            ) from failure


def _without_a_cluster(place: str, identity: DataDirectory) -> str:
    return (
        f"The data in {identity.path} belongs to the cluster {identity.cluster_id}, but the coordination store {place} "
        "has no cluster yet. Correct ottla.coordination, or give this broker another directory."
    )


async def _opened(text: str, clock: RealClock) -> Coordination:
    """Opens the store, waiting until it is available: the machines of a cluster start in any order."""
    patience = asyncio.get_running_loop().call_later(
        COORDINATION_PATIENCE_S, log.warning, "waiting for the coordination store %s", text
    )
    said = ""
    try:
        while True:
            try:
                return await open_coordination(text, clock)
            except UnavailableError as error:
                if str(error) != said:
                    log.warning("the coordination store %s is not available yet: %s", text, error)
                    said = str(error)
                await asyncio.sleep(COORDINATION_RETRY_S)
    finally:
        patience.cancel()
