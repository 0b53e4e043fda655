"""The state and resources that the parts of a broker share.

Parts (topic administration, coordinators, housekeeping, the cluster's roles) take a `BrokerContext` and the few other
parts they call. The context knows none of them: it notifies them through `events`, where each part registers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from uuid import UUID, uuid4

from ottla.broker.endpoints import AdvertisedEndpoints
from ottla.broker.partition.backlog import Backlog
from ottla.broker.partition.partition import Partition
from ottla.broker.partition.replication_throttles import ReplicationThrottles
from ottla.broker.partition.waits import Wakeups
from ottla.broker.storage.file_log import FileLog
from ottla.broker.storage.log_resources import LogResources
from ottla.broker.topics.log_store import LogStore
from ottla.broker.topics.topic_events import TopicEvents
from ottla.broker.topics.topics import Topics
from ottla.machines.authorization import AclAuthorizer
from ottla.net.security import NO_SECURITY
from ottla.ports import Clock
from ottla.protocol.model.access_keys import parse_principals
from ottla.protocol.model.broker_config import BrokerConfig


class BrokerContext:
    """Configuration, logs and topics of one broker."""

    def __init__(
        self,
        config: BrokerConfig,
        shared: LogResources,
        store: LogStore,
        log_dir: str,
        new_id: Callable[[], UUID] = uuid4,
    ) -> None:
        self.config = config
        """The settings in effect: the static ones with the dynamic ones on top."""
        self.static_config = config
        self.dynamic_overrides: dict[str, str] = {}
        """All dynamic settings that apply to this broker."""
        self.shared = shared
        self.store = store
        self.log_dir = log_dir
        self.new_id = new_id
        self.clock: Clock = shared.clock
        self.node_id = config.node_id
        self.endpoints = AdvertisedEndpoints()
        self.peer_security = NO_SECURITY
        """How this broker connects to others."""
        self.authorizer = _authorizer(config)
        """Decides what clients may do; None means everything."""
        self.topics = Topics()
        self.events = TopicEvents()
        self.wakeups = Wakeups(self.clock)
        self.backlog = Backlog(
            self.clock,
            config.unacknowledged_max_bytes,
            lambda: shared.tail.is_filling,
            lambda: float(self.config.replica_lag_time_max_ms),
        )
        self.throttles = ReplicationThrottles(self.clock, config)

    def partitions(self) -> Iterator[Partition]:
        """Iterates over all partitions on this broker."""
        for topic in self.topics:
            yield from topic.partitions

    def file_logs(self) -> Iterator[FileLog]:
        """Iterates over the logs that have files, including those that no topic uses yet."""
        return iter(self.store.logs.values())

    def log_dir_free_bytes(self) -> int:
        """Returns the free space of the file system that holds the logs."""
        return self.shared.disk.files.free_bytes(self.log_dir)

    def log_dir_total_bytes(self) -> int:
        """Returns the size of the file system that holds the logs."""
        return self.shared.disk.files.total_bytes(self.log_dir)


def _authorizer(config: BrokerConfig) -> AclAuthorizer | None:
    if not config.authorizer_class_name:
        return None
    return AclAuthorizer(
        parse_principals(config.super_users or ""),
        allow_everyone_if_no_acl_found=config.allow_everyone_if_no_acl_found,
    )
