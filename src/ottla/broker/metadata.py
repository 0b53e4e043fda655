"""The port to the metadata of the cluster: which brokers and topics there are, and how to change them.

There are two implementations. `standalone.metadata.StandaloneMetadata` keeps everything in a catalog on the broker's
own disk. `cluster.metadata.ClusterMetadata` keeps it in a coordination store that all brokers share.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ottla.broker.endpoints import Endpoint, Node
from ottla.broker.partition.partition import Partition
from ottla.broker.security.credentials import Entries
from ottla.broker.topics.topic_admin import TopicAdmin
from ottla.protocol.model.acl_bindings import AclBinding, AclFilter
from ottla.protocol.model.errors import Refused
from ottla.protocol.model.ids import TopicId

if TYPE_CHECKING:  # a broker that is alone stays small without them
    from ottla.coordination.port import Coordination
    from ottla.machines.controller.partition_requests import Reassignment

Place = tuple[str, int]
"""A partition as clients name it: topic and index."""
Answers = Mapping[Place, Refused | None]


class CoordinationState(NamedTuple):
    """The broker's connection to its coordination store, for metrics."""

    store: Coordination
    has_lease: bool
    revision: int
    """The revision that this broker has seen."""
    reassigning_count: int
    """Number of partitions that are being reassigned, if this broker is the controller; otherwise 0."""


class PartitionAdmin(Protocol):
    """Moves replicas and elects leaders."""

    async def reassign(self, targets: Mapping[Place, Sequence[int] | None]) -> Answers | Refused:
        """Begins reassignments. A target of None cancels one."""
        ...

    async def elect(self, places: Iterable[Place] | None, *, unclean: bool) -> Answers | Refused:
        """Elects leaders for these partitions, or for all of them if None."""
        ...

    def reassignments(self, places: Iterable[Place] | None) -> Mapping[Place, Reassignment]:
        """Returns the ongoing reassignments of these partitions, or of all of them if None."""
        ...


class AclAdmin(Protocol):
    """Creates and deletes ACLs. The authorizer of this broker follows before a call returns, those of other brokers
    soon after."""

    async def create_acls(self, bindings: Sequence[AclBinding]) -> Refused | None:
        """Creates valid ACLs; those that exist already stay as they are."""
        ...

    async def delete_acls(self, filters: Sequence[AclFilter]) -> Sequence[tuple[AclBinding, ...]] | Refused:
        """Deletes the ACLs that the filters select, and returns them for each filter."""
        ...


class Metadata(Protocol):
    """The cluster from the point of view of one broker."""

    @property
    def cluster_id(self) -> str:
        """The id of the cluster."""
        ...

    @property
    def controller_id(self) -> int:
        """The id of the controller, or -1 if there is none."""
        ...

    @property
    def admin(self) -> TopicAdmin:
        """Changes topics and dynamic settings."""
        ...

    @property
    def partition_admin(self) -> PartitionAdmin:
        """Moves replicas and elects leaders."""
        ...

    @property
    def entries(self) -> Entries:
        """Stores other entries, such as credentials."""
        ...

    @property
    def acl_admin(self) -> AclAdmin:
        """Creates and deletes ACLs."""
        ...

    @property
    def brokers_may_join(self) -> bool:
        """Whether there can be more brokers later than there are now."""
        ...

    # -- brokers and topics -----------------------------------------------------------------------------------

    def nodes(self, listener: str | None = None) -> list[Node]:
        """Returns the live brokers, each with its address at the named listener. Brokers without that listener are left
        out. Without a name, every broker has the address of its first listener for clients."""
        ...

    def peer_address(self, broker_id: int) -> Endpoint | None:
        """Returns the address at which brokers reach a live broker, possibly this one."""
        ...

    async def refresh(self) -> Refused | None:
        """Waits until this broker knows everything that was decided before the call."""
        ...

    def sees_all_topics(self) -> bool:
        """Whether this broker can read the entries of all topics, so that a topic it does not know does not exist."""
        ...

    async def reserve_producer_ids(self, count: int) -> int | Refused:
        """Reserves consecutive producer ids durably and returns the first."""
        ...

    # -- replication ------------------------------------------------------------------------------------------

    def check_lease(self) -> None:
        """Gives up all leaderships if the lease has expired, since other brokers may have taken over (safety: leases).
        Called before each request."""
        ...

    def knows_replica(self, broker_id: int, broker_epoch: int) -> bool:
        """Whether this is the live incarnation of another broker."""
        ...

    def preferred_read_replica(self, partition: Partition, rack: str, offset: int) -> int | None:
        """Returns the follower from which a consumer in this rack should read from this offset on, or None for this
        broker."""
        ...

    def on_follower_heard(self, partition: Partition) -> None:
        """Notes a fetch or report of a follower."""
        ...

    def on_synced_end(
        self, topic_id: TopicId, index: int, leader_epoch: int, broker_id: int, broker_epoch: int, end: int
    ) -> None:
        """Notes a follower's report of its synced end, if this broker leads the partition in this epoch."""
        ...

    # -- life cycle -------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Does periodic work. Called every few hundred milliseconds."""
        ...

    def coordination_state(self) -> CoordinationState | None:
        """Returns the state of the coordination store, or None if there is none."""
        ...

    async def hand_over(self) -> None:
        """Hands over leadership before a controlled shutdown. Waits for it, up to a limit."""
        ...

    async def leave(self) -> None:
        """Leaves the cluster. Requests are no longer accepted; the logs are still open."""
        ...

    def note_clean_shutdown(self) -> None:
        """Records that everything is durable, after `leave` and once the logs are flushed."""
        ...

    async def abandon(self) -> None:
        """Stops without notifying any broker, as in a crash."""
        ...
