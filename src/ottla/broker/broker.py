"""The broker as handlers use it: topics, coordinators and the state that requests share."""

from __future__ import annotations

from uuid import UUID

from ottla.broker.context import BrokerContext
from ottla.broker.coordinators.peers import PeerAddresses
from ottla.broker.groups.archive_progress import GroupArchiveProgress
from ottla.broker.groups.groups import Groups
from ottla.broker.metadata import Metadata
from ottla.broker.partition.fetch_sessions import FetchSessions
from ottla.broker.partition.partition import Partition
from ottla.broker.partition.transaction_verification import NoVerification, Verifier
from ottla.broker.partition.waits import Deadlines
from ottla.broker.request_meters import RequestMeters
from ottla.broker.security.credentials import ScramCredentials
from ottla.broker.topics.housekeeping import Housekeeping
from ottla.broker.topics.topics import Topic
from ottla.broker.traffic import Traffic
from ottla.broker.transactions.producer_ids import ProducerIds
from ottla.broker.transactions.settings import STATE_TOPIC
from ottla.broker.transactions.transactions import Transactions
from ottla.broker.transactions.verification import CoordinatorVerifier
from ottla.machines.groups.placement import OFFSETS_TOPIC
from ottla.protocol.model.broker_config import RACK_AWARE_SELECTOR, BrokerConfig
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.model.ids import TopicId


class Broker:
    """One broker, alone or in a cluster: its metadata, its coordinators and its periodic work.

    The metadata recovers the topics; then `start` begins the periodic work, and the broker can serve.
    """

    def __init__(self, context: BrokerContext, metadata: Metadata) -> None:
        self.context = context
        self.metadata = metadata
        self.credentials = ScramCredentials(metadata.entries)
        self.clock = context.clock
        self.topics = context.topics
        self.authorizer = context.authorizer
        self.backlog = context.backlog
        self.throttles = context.throttles
        self.deadlines = Deadlines(self.clock)
        self.fetch_sessions = FetchSessions(
            context.config.max_incremental_fetch_session_cache_slots,
            self.clock.monotonic_ms,
            lambda: context.new_id().int & 0x7FFFFFFF,
        )
        self.traffic = Traffic.none()
        self.meters = RequestMeters()
        self.stopping = False
        self.producer_ids = ProducerIds(metadata.reserve_producer_ids)
        peers = PeerAddresses(context.node_id, metadata.peer_address, context.peer_security)
        self.transactions = Transactions(context, metadata, self.producer_ids)
        self._coordinators_verify = CoordinatorVerifier(context.topics, self.transactions, peers)
        is_verified = context.config.transaction_partition_verification_enable
        self.verifier: Verifier = self._coordinators_verify if is_verified else NoVerification()
        self.groups = Groups(context, metadata, self.verifier)
        self._archive_progress = GroupArchiveProgress(context.topics, self.groups, peers)
        self.housekeeping = Housekeeping(context, self._archive_progress, metadata.tick)
        context.events.role_listeners += [self.groups.on_role, self.transactions.on_role]
        context.events.change_listeners.append(self.groups.on_topics_changed)

    @property
    def config(self) -> BrokerConfig:
        """The settings in effect."""
        return self.context.config

    @property
    def node_id(self) -> int:
        """The id of this broker."""
        return self.context.node_id

    # -- life cycle -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begins the periodic work. The metadata has recovered the topics."""
        self.housekeeping.start()

    def begin_shutdown(self) -> None:
        """Answers parked requests with the data there is; new requests are not parked."""
        self.stopping = True
        self._stop_coordinators()
        for partition in self.context.partitions():
            partition.watches.wake_fetches()

    async def stop(self) -> None:
        """Makes everything durable, so that the next start has nothing to replay. The server has already stopped."""
        self.begin_shutdown()
        await self.metadata.leave()
        self._stop_housekeeping()
        await self.housekeeping.flush_everything()
        self.abandon()

    def abandon(self) -> None:
        """Closes everything without flushing, which leaves the same state as a crash."""
        self._stop_coordinators()
        self._stop_housekeeping()
        self.context.store.close()

    def _stop_coordinators(self) -> None:
        self.groups.stop()
        self.transactions.stop()
        self._coordinators_verify.stop()

    def _stop_housekeeping(self) -> None:
        self.housekeeping.stop()
        self._archive_progress.stop()

    # -- for handlers -----------------------------------------------------------------------------------------

    def topic_by(self, key: str | UUID) -> Topic | None:
        """Returns the topic with this name or id."""
        return self.topics.get(key) if isinstance(key, str) else self.topics.by_id(TopicId(key))

    def preferred_read_replica(self, partition: Partition, rack: str, offset: int) -> int | None:
        """Returns the follower from which a consumer in this rack should read from this offset on, or None for this
        broker."""
        if self.config.replica_selector_class != RACK_AWARE_SELECTOR:
            return None
        return self.metadata.preferred_read_replica(partition, rack, offset)

    async def ensure_topic(self, name: str) -> Topic | Refused:
        """Returns the topic, creating it if allowed, as a metadata request does in Kafka."""
        topic = self.topics.get(name)
        if topic is not None:
            return topic
        if name == OFFSETS_TOPIC:
            return await self.groups.ensure_topic()
        if name == STATE_TOPIC:
            return await self.transactions.ensure_topic()
        if not self.config.auto_create_topics_enable:
            return Refused(ErrorCode.unknown_topic_or_partition, f"there is no topic '{name}'")
        # Another broker may have created it in the meantime.
        refused = await self.metadata.refresh()
        if refused is not None:
            return refused
        topic = self.topics.get(name)
        if topic is not None:
            return topic
        created = await self.metadata.admin.create_topic(name, -1, {}, replication_factor=-1)
        if isinstance(created, Refused) and created.error is ErrorCode.topic_already_exists:
            return self.topics.get(name) or created
        return created
