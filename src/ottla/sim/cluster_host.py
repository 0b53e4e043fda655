"""A broker of a cluster as the program of a simulated host.

    store = SimCoordination(world.clock, seed=seed)
    for number in (1, 2, 3):
        world.host(f"broker-{number}", program=ClusterProgram(store, number, {"default.replication.factor": "3"}))

The broker is the real one; its disk, its clock, its network and the coordination store are simulated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from ottla.broker.api.request_handler import BrokerRequestHandler
from ottla.broker.broker import Broker
from ottla.broker.cluster.identity import take_clean_shutdown
from ottla.broker.cluster.membership import Membership
from ottla.broker.cluster.metadata import ClusterMetadata
from ottla.broker.endpoints import Endpoint
from ottla.broker.server.server import Server
from ottla.broker.wal_service.server import AppendStreamServer
from ottla.machines.controller.broker_requests import BrokerStart
from ottla.sim.broker_host import DATA_DIR, PORT, new_context
from ottla.sim.coordination import SimCoordination, SimCoordinationClient
from ottla.sim.hosts import SimHost

STOP_GRACE_S = 5.0


class ClusterProgram:
    """Runs one broker of a cluster that coordinates through a simulated store."""

    def __init__(
        self,
        store: SimCoordination,
        broker_id: int,
        properties: Mapping[str, str],
        *,
        on_disk: Callable[[SimHost], None] | None = None,
    ) -> None:
        self._store = store
        self._broker_id = broker_id
        self.properties = {**properties, "node.id": str(broker_id)}
        self._on_disk = on_disk
        self.reports: list[str] = []
        self.directory = 0
        """Number of disks that this host has had: a wiped disk is a different directory."""
        self.broker: Broker | None = None
        self.client: SimCoordinationClient | None = None
        self.is_stopping = False
        self._server: Server | None = None
        self._writers: AppendStreamServer | None = None
        self._clean_epoch: int | None = None

    @property
    def journal_id(self) -> bytes:
        """Identifies the journal; created together with the directory."""
        return bytes([self._broker_id, self.directory % 256] * 8)

    @property
    def cluster(self) -> ClusterMetadata | None:
        """The broker's part in the cluster, while it runs."""
        metadata = self.broker.metadata if self.broker is not None else None
        return metadata if isinstance(metadata, ClusterMetadata) else None

    def broker_is_in(self) -> bool:
        """Returns whether the broker is registered."""
        return self.cluster is not None and self.cluster.membership.member is not None

    async def __call__(self, host: SimHost) -> None:
        if not host.has_disk:
            host.add_disk()
            self.directory += 1
        if self._on_disk is not None:
            self._on_disk(host)
        self.is_stopping = False
        self._clean_epoch = take_clean_shutdown(host.disk.files, DATA_DIR)
        context = new_context(host, self.properties, self.journal_id, self.reports)
        self.client = self._store.client(host.clock, name=f"{host.name}/{host.incarnation}")
        membership = Membership(self.client, host.clock, context.config.broker_session_timeout_ms)
        cluster = ClusterMetadata(context, membership, "", allow_shared_machine=False)
        broker = self.broker = Broker(context, cluster)
        await cluster.recover()
        broker.start()
        cluster.open()
        server = self._server = Server(BrokerRequestHandler(broker), broker.config)
        _, port = await server.start(host.name, PORT)
        context.endpoints.clients = Endpoint(host.name, port)
        if broker.config.wal_port is not None:
            writers = self._writers = AppendStreamServer(broker)
            await writers.start(host.name, broker.config.wal_port)
            context.endpoints.wal_port = writers.port
        await cluster.join(self._start(host, port, cluster))
        await asyncio.get_running_loop().create_future()  # until the host is killed or loses power

    async def stop(self) -> None:
        """Stops the broker as SIGTERM does: hands leadership over, answers, flushes, and records the clean shutdown.
        The caller ends the process afterwards. Does nothing while the broker starts or stops."""
        broker, server = self.broker, self._server
        if broker is None or server is None or self.is_stopping or not self.broker_is_in():
            return
        self.is_stopping = True
        await broker.metadata.hand_over()
        broker.begin_shutdown()
        if self._writers is not None:
            await self._writers.stop(STOP_GRACE_S)
        await server.stop(STOP_GRACE_S)
        await broker.stop()
        broker.metadata.note_clean_shutdown()
        if self.client is not None:
            await self.client.close()

    def _start(self, host: SimHost, port: int, cluster: ClusterMetadata) -> BrokerStart:
        return BrokerStart(
            broker_id=self._broker_id,
            host=host.name,
            port=port,
            machine=host.name,
            directory_id=f"{host.name}/{self.directory}",
            boot_id=f"{host.name}/{host.power_cuts}",
            rack=self.properties.get("broker.rack"),
            wal_port=int(self.properties.get("ottla.wal.port", "0")),
            clean_shutdown_epoch=self._clean_epoch,
            damaged=cluster.damaged_classes(),
        )
