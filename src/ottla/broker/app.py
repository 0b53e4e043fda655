"""The composition root: settings -> adapters -> broker -> server. This is the one place that knows all parts."""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from ottla.broker.adapters.buffers import BufferPool
from ottla.broker.adapters.catalog import SqliteCatalog
from ottla.broker.adapters.clock import RealClock
from ottla.broker.adapters.data_dir import DataDirectory, open_data_directory, read_identity
from ottla.broker.adapters.disk import RealDisk
from ottla.broker.adapters.files import RealFileSystem
from ottla.broker.adapters.kernel import is_memory_file_system
from ottla.broker.adapters.lock import DirectoryLock
from ottla.broker.adapters.volatile import VolatileDisk
from ottla.broker.api.request_handler import BrokerRequestHandler
from ottla.broker.app_listeners import BadSettingsError, PreparedListeners, prepare_listeners
from ottla.broker.broker import Broker
from ottla.broker.context import BrokerContext
from ottla.broker.endpoints import Endpoint
from ottla.broker.server.listener import check_address
from ottla.broker.server.server import Server
from ottla.broker.standalone.metadata import StandaloneMetadata
from ottla.broker.storage.journal import JournalLimits
from ottla.broker.storage.log_resources import LogResources, MemoryBudget
from ottla.broker.storage.tail_cache import TailCache
from ottla.broker.topics.log_store import LogStore
from ottla.coordination.port import Coordination
from ottla.coordination.store_factory import BadCoordinationError
from ottla.protocol.model.broker_config import BROKER_CONFIGS, BrokerConfig, find_key, parse_broker_config
from ottla.protocol.model.durability import Durability
from ottla.protocol.model.errors import Refused
from ottla.protocol.model.foreign_settings import notices
from ottla.protocol.model.listeners import ListenerAddress, ListenerTable, SecurityProtocol
from ottla.protocol.sasl.scram import HASHES

if TYPE_CHECKING:
    from ottla.broker.metrics.service import MetricsService
    from ottla.broker.wal_service.server import AppendStreamServer

log = logging.getLogger("ottla")

DEFAULT_HOST = "127.0.0.1"
RECEIVE_POOL_BYTES = 16 * 1024 * 1024
STOP_GRACE_S = 10.0


@dataclass(slots=True)
class BrokerSettings:
    """The settings of a broker process."""

    data_dir: str
    host: str = DEFAULT_HOST
    port: int = 9092
    storage: Durability | None = None
    """The durability of topics that do not set one."""
    properties: dict[str, str] = field(default_factory=dict)
    disk: Literal["real", "volatile"] = "real"
    """`volatile` keeps unsynced data in this process's memory, for tests of power failures."""
    fault_file: str | None = None
    """With `volatile`: a file whose content makes disk operations fail while the broker runs."""
    advertised_host: str | None = None
    advertised_port: int | None = None
    listeners: ListenerTable = field(default_factory=ListenerTable)
    """The names, protocols and addresses of the listeners. The address of the one for clients is given by `host`,
    `port`, `advertised_host` and `advertised_port`."""

    def all_listeners(self) -> list[ListenerAddress]:
        """Returns every listener with its address, that for clients first."""
        client = self.listeners.client._replace(
            host=self.host,
            port=self.port,
            advertised_host=self.advertised_host,
            advertised_port=self.advertised_port,
        )
        return [client, *self.listeners.others]


class RunningBroker:
    """A broker that serves clients, as returned by `start_broker`. End it with `stop`."""

    def __init__(
        self,
        broker: Broker,
        server: Server,
        disk: RealDisk | VolatileDisk,
        lock: DirectoryLock,
        catalog: SqliteCatalog | None = None,
        store: Coordination | None = None,
    ) -> None:
        self.broker = broker
        self.server = server
        self.warnings: list[str] = []
        self.metrics: MetricsService | None = None
        self.append_stream: AppendStreamServer | None = None
        self._disk = disk
        self._lock = lock
        self._catalog = catalog
        self._store = store

    @property
    def bootstrap(self) -> str:
        """The address of the broker for clients, as host:port."""
        host, port = self.broker.context.endpoints.clients
        return f"{host}:{port}"

    @property
    def wal_server(self) -> str | None:
        """The address of the append stream, as host:port; None if there is none."""
        if self.append_stream is None:
            return None
        return f"{self.broker.context.endpoints.clients.host}:{self.append_stream.port}"

    async def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """Answers accepted requests, makes everything durable and stops."""
        await self.broker.metadata.hand_over()
        self.broker.begin_shutdown()
        if self.append_stream is not None:
            await self.append_stream.stop(grace_s)
        await self.server.stop(grace_s)
        self._close_metrics()
        await self.broker.stop()
        self.broker.metadata.note_clean_shutdown()
        await self._let_go()

    async def kill(self) -> None:
        """Stops at once without flushing, which leaves the state of a crash, as far as a single process can show it."""
        if self.append_stream is not None:
            await self.append_stream.kill()
        await self.server.stop(0)
        self._close_metrics()
        await self.broker.metadata.abandon()
        self.broker.abandon()
        await self._let_go()

    def _close_metrics(self) -> None:
        if self.metrics is not None:
            self.metrics.close()

    async def _let_go(self) -> None:
        self._disk.close()
        if self._catalog is not None:
            self._catalog.close()
        if self._store is not None:
            await self._store.close()
        self._lock.release()


async def start_broker(settings: BrokerSettings) -> RunningBroker:
    """Starts a broker. Raises BadSettingsError, DirectoryInUseError, UnusableDirectoryError or OSError, each with a
    readable message."""
    config = _parse(settings)
    # Before the directory is created: wrong settings leave nothing behind.
    listeners = prepare_listeners(settings.all_listeners(), settings.listeners.inter_broker, config)
    loop = asyncio.get_running_loop()
    data_dir = os.path.abspath(settings.data_dir)
    read_identity(RealFileSystem(), data_dir, node_id=config.node_id)  # before writing to a directory of another broker
    lock = DirectoryLock(data_dir)
    disk: RealDisk | VolatileDisk | None = None
    metrics: MetricsService | None = None
    try:
        # Before recovery, which consumes the record of a clean shutdown: a port in use must not cost that record.
        for listener in settings.all_listeners():
            check_address(listener.host or DEFAULT_HOST, listener.port or 0)
        metrics = _metrics(config)
        disk = _disk(settings, loop, data_dir)
        compose = _compose if config.coordination is None else _compose_in_cluster
        running = await compose(settings, config, disk, data_dir, lock, listeners)
        if metrics is not None:
            metrics.start(running.broker, running.server)
            running.metrics = metrics
    except BaseException:
        if metrics is not None:
            metrics.close()
        if disk is not None:
            disk.close()
        lock.release()
        raise
    return running


def _metrics(config: BrokerConfig) -> MetricsService | None:
    if config.metrics_port is None:
        return None
    from ottla.broker.metrics.service import MetricsAddressError, MetricsService  # a broker without metrics stays small

    try:
        return MetricsService(config.metrics_host, config.metrics_port)
    except MetricsAddressError as failure:
        raise BadSettingsError(str(failure)) from failure


async def _compose(
    settings: BrokerSettings,
    config: BrokerConfig,
    disk: RealDisk | VolatileDisk,
    data_dir: str,
    lock: DirectoryLock,
    listeners: PreparedListeners,
) -> RunningBroker:
    clock = RealClock(asyncio.get_running_loop())
    identity = open_data_directory(disk.files, data_dir, node_id=config.node_id)
    context = _context(config, disk, clock, data_dir, identity)
    context.peer_security = listeners.peer_security
    catalog = SqliteCatalog(os.path.join(data_dir, "catalog.db"), cluster_id=identity.cluster_id)
    metadata = StandaloneMetadata(context, catalog)
    broker = Broker(context, metadata)
    metadata.recover()
    broker.start()
    try:
        server = await _listen(settings, broker, listeners)
        append_stream = await _listen_to_writers(settings, broker)
    except (OSError, BadSettingsError):
        broker.abandon()
        catalog.close()
        raise
    running = RunningBroker(broker, server, disk, lock, catalog)
    running.append_stream = append_stream
    return _warned(running, settings, data_dir)


async def _compose_in_cluster(
    settings: BrokerSettings,
    config: BrokerConfig,
    disk: RealDisk | VolatileDisk,
    data_dir: str,
    lock: DirectoryLock,
    listeners: PreparedListeners,
) -> RunningBroker:
    from ottla.broker.app_cluster import ClusterStart  # a single broker stays small without it

    clock = RealClock(asyncio.get_running_loop())
    known = read_identity(disk.files, data_dir, node_id=config.node_id)
    try:
        start = await ClusterStart.begin(config, clock, known)
    except BadCoordinationError as failure:
        raise BadSettingsError(str(failure)) from failure
    try:
        identity = open_data_directory(disk.files, data_dir, node_id=config.node_id, cluster_id=start.cluster_id)
        context = _context(config, disk, clock, data_dir, identity)
        context.peer_security = listeners.peer_security
        broker = await start.recover(context)
        server = await _listen(settings, broker, listeners)
        append_stream = await _listen_to_writers(settings, broker)
        await start.join(identity.directory_id.hex, loses_pages=settings.disk == "volatile")
    except BaseException as failure:
        await start.store.close()
        if isinstance(failure, BadCoordinationError):
            raise BadSettingsError(str(failure)) from failure
        raise
    running = RunningBroker(broker, server, disk, lock, store=start.store)
    running.append_stream = append_stream
    return _warned(running, settings, data_dir)


def _context(
    config: BrokerConfig, disk: RealDisk | VolatileDisk, clock: RealClock, data_dir: str, identity: DataDirectory
) -> BrokerContext:
    shared = LogResources(
        disk=disk,
        clock=clock,
        tail=TailCache(config.tail_cache_bytes, config.unwritten_max_bytes),
        memory=MemoryBudget(config.memory_max_bytes),
        receive=BufferPool(RECEIVE_POOL_BYTES).allocate,
        report=log.error,
    )
    limits = JournalLimits(ring_bytes_max=config.journal_bytes, file_bytes_max=config.journal_file_bytes)
    store = LogStore(shared, data_dir, identity.directory_id.bytes, limits)
    return BrokerContext(config, shared, store, data_dir)


async def _listen(settings: BrokerSettings, broker: Broker, listeners: PreparedListeners) -> Server:
    endpoints = broker.context.endpoints
    server = Server(BrokerRequestHandler(broker, listeners.securities), broker.config, broker.context.shared.receive)
    await _ensure_own_logins(broker, listeners)
    client, *others = settings.all_listeners()
    host = client.host or DEFAULT_HOST
    _, port = await server.start(host, client.port or 0, listeners.kinds[client.name])
    endpoints.clients = endpoints.by_listener[client.name] = _advertised(client, port)
    for listener in others:
        port = server.listen_also(listener.host or DEFAULT_HOST, listener.port or 0, listeners.kinds[listener.name])
        endpoints.by_listener[listener.name] = _advertised(listener, port)
    internal = endpoints.by_listener[settings.listeners.inter_broker]
    endpoints.brokers = None if internal == endpoints.clients else internal
    return server


async def _ensure_own_logins(broker: Broker, listeners: PreparedListeners) -> None:
    """Creates the credentials of this broker's own logins, if there are none yet."""
    for security in listeners.securities.values():
        logins = {} if security.sasl is None else security.sasl.logins
        for mechanism, (name, password) in logins.items():
            if mechanism in HASHES:
                await broker.credentials.ensure(name, mechanism, password)


def _advertised(listener: ListenerAddress, port: int) -> Endpoint:
    return Endpoint(
        listener.advertised_host or _reachable(listener.host or DEFAULT_HOST), listener.advertised_port or port
    )


async def _listen_to_writers(settings: BrokerSettings, broker: Broker) -> AppendStreamServer | None:
    """Starts the append stream. This comes before the broker joins, because its registration contains the port."""
    port = broker.config.wal_port
    if port is None:
        return None
    secured = [each.name for each in settings.listeners.all() if each.protocol is not SecurityProtocol.PLAINTEXT]
    if secured:
        raise BadSettingsError(
            "ottla.wal.port is set, but the append stream has neither encryption nor authentication, so it would be a "
            f"way around the listener {secured[0]}; remove ottla.wal.port"
        )
    try:
        from ottla.broker.wal_service.server import AppendStreamServer  # a broker without it stays small
    except ImportError as failure:
        raise BadSettingsError(
            f"ottla.wal.port is set, but '{failure.name}' is not installed: pip install 'ottla[wal]'"
        ) from failure
    server = AppendStreamServer(broker)
    host = broker.config.wal_host or settings.host
    try:
        await server.start(host, port)
    except OSError as failure:
        why = failure.strerror or failure
        raise BadSettingsError(f"the append stream cannot listen on {host}:{port} (ottla.wal.port): {why}") from failure
    broker.context.endpoints.wal_port = broker.config.wal_advertised_port or server.port
    return server


def _warned(running: RunningBroker, settings: BrokerSettings, data_dir: str) -> RunningBroker:
    foreign = [name for name in settings.properties if find_key(name) is None]
    running.warnings.extend(notices(foreign, BROKER_CONFIGS))
    if is_memory_file_system(data_dir) and settings.storage is not Durability.MEMORY:
        running.warnings.append(
            f"{data_dir} is on a file system in memory: topics of the class `disk` will not survive a power cut there. "
            "Give a directory on a disk with --data."
        )
    return running


def _parse(settings: BrokerSettings) -> BrokerConfig:
    properties = dict(settings.properties)
    if settings.storage is not None:
        properties["ottla.durability"] = settings.storage.value
    config = parse_broker_config(properties)
    if isinstance(config, Refused):
        raise BadSettingsError(config.message or "invalid setting")
    return config


def _disk(settings: BrokerSettings, loop: asyncio.AbstractEventLoop, data_dir: str) -> RealDisk | VolatileDisk:
    if settings.disk == "volatile":
        return VolatileDisk(loop, data_dir, fault_path=settings.fault_file)
    return RealDisk(loop)


def _reachable(host: str) -> str:
    """Returns the host that clients are told to connect to: a wildcard address cannot be connected to."""
    return "127.0.0.1" if host in ("0.0.0.0", "::", "") else host
