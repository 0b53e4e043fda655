"""Clients of both protocols, as the group coordinator sees them: they join, heartbeat, commit, time out and rejoin."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from ottla.machines.groups.consumer_protocol import (
    NamedPartition,
    Subscription,
    read_assignment,
    read_subscription,
    write_assignment,
    write_subscription,
)
from ottla.machines.groups.records import NOTHING, Assignment
from ottla.machines.groups.replies import (
    ConsumerHeartbeatReply,
    HeartbeatReply,
    JoinedMember,
    JoinReply,
    Reply,
    SyncReply,
)
from ottla.machines.groups.requests import (
    ConsumerHeartbeat,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    SyncGroup,
)

if TYPE_CHECKING:
    from tests.properties.groups_world import World

GROUP = "g"
SESSION_MS = 10_000
REBALANCE_MS = 20_000


class Client(ABC):
    def __init__(self, world: World, place: int, instance_id: str | None) -> None:
        self.world = world
        self.place = place
        self.instance_id = instance_id
        self.is_alive = True
        self.member_id = ""
        self.generation = -1
        self.ticket: int | None = None
        self.loses_next = False
        self.forget()

    @abstractmethod
    def act(self) -> None: ...

    @abstractmethod
    def on_reply(self, reply: Reply) -> None: ...

    @abstractmethod
    def forget(self) -> None:
        """Forgets its partitions and its membership."""

    @abstractmethod
    def leave(self) -> None: ...

    @abstractmethod
    def is_valid(self, epoch: int) -> bool:
        """Returns whether it counts as a member, given the group's epoch for it."""

    @property
    @abstractmethod
    def owned_ids(self) -> Assignment: ...

    @property
    @abstractmethod
    def is_settled(self) -> bool: ...

    def take(self, ticket: int, reply: Reply) -> None:
        if ticket != self.ticket or not self.is_alive:
            return  # it no longer waits for that
        self.ticket = None
        if self.loses_next:
            self.loses_next = False
            self.on_lost()
        else:
            self.on_reply(reply)

    def give_up(self) -> None:
        if self.ticket is not None:
            self.ticket = None
            self.on_lost()

    @abstractmethod
    def on_lost(self) -> None:
        """No reply arrived. The client will retry."""

    def kill(self) -> None:
        self.is_alive = False
        self.ticket = None
        self.forget()

    def restart(self) -> None:
        self.kill()
        self.is_alive = True


class ClassicClient(Client):
    """Every other client is eager: it gives up all partitions before it joins. The others are cooperative."""

    def forget(self) -> None:
        self.member_id, self.generation = "", -1
        self.owned: frozenset[NamedPartition] = frozenset()
        self.step = "join"
        self.asked_classic_group = False
        """Its last SyncGroup; in a consumer group, assignments shrink within a generation."""
        self.has_withheld = False
        """As a leader, it could not assign all partitions yet."""
        self.counted: int | None = None
        """As a leader, how many partitions it assigned. If the count changes, it rejoins to assign again."""

    @property
    def is_cooperative(self) -> bool:
        return self.place % 2 == 0

    def is_valid(self, epoch: int) -> bool:
        return self.generation == epoch

    @property
    def owned_ids(self) -> Assignment:
        topics = self.world.topics.topics
        return frozenset((topics[topic][0], index) for topic, index in self.owned)

    @property
    def is_settled(self) -> bool:
        return self.step == "beat"

    def on_lost(self) -> None:
        if self.step == "sync":
            self.step = "join"

    def act(self) -> None:
        if not self.is_alive or self.ticket is not None:
            return
        if self.step == "beat" and self.counted not in (None, self.world.partition_count):
            self.step = "join"
        if self.step == "join":
            self._join()
        elif self.step == "beat":
            request = Heartbeat(
                group=GROUP, generation=self.generation, member_id=self.member_id, instance_id=self.instance_id
            )
            self.ticket = self.world.send(self, request)

    def _join(self) -> None:
        if not self.is_cooperative:
            self.owned = frozenset()
        subscription = write_subscription(Subscription(1, ("orders",), self.owned))
        request = JoinGroup(
            group=GROUP,
            member_id=self.member_id,
            instance_id=self.instance_id,
            protocols=(("mine", subscription),),
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            client_id=f"c{self.place}",
            fresh_id=self.world.fresh_id(),
        )
        self.ticket = self.world.send(self, request)

    def on_reply(self, reply: Reply) -> None:
        if isinstance(reply, JoinReply):
            self._on_joined(reply)
        elif isinstance(reply, SyncReply):
            self._on_synced(reply)
        elif isinstance(reply, HeartbeatReply):
            self._on_error(reply.error.name)

    def _on_error(self, error: str) -> None:
        if error == "rebalance_in_progress":
            self.step = "join"
        elif error == "illegal_generation":
            self.owned, self.step = frozenset(), "join"
        elif error != "none":
            self.forget()

    def _on_joined(self, reply: JoinReply) -> None:
        if reply.error.name == "member_id_required":
            self.member_id = reply.member_id
            self._join()
        elif reply.error.name != "none":
            self._on_error(reply.error.name)
        else:
            self.member_id, self.generation, self.step = reply.member_id, reply.generation, "sync"
            is_leader = reply.leader == reply.member_id and not reply.skip_assignment
            if is_leader:
                self.world.led_in(self.generation, frozenset(member.member_id for member in reply.members))
            self.counted = -1 if reply.leader == reply.member_id else None
            self.asked_classic_group = GROUP not in self.world.coordinator.tables.consumer
            request = SyncGroup(
                group=GROUP,
                generation=self.generation,
                member_id=self.member_id,
                instance_id=self.instance_id,
                assignments=self._assigned(reply.members) if is_leader else (),
            )
            self.ticket = self.world.send(self, request)

    def _assigned(self, members: tuple[JoinedMember, ...]) -> tuple[tuple[str, bytes], ...]:
        """Assigns in turn, except partitions that another member still owns: those follow when they were revoked."""
        ids = sorted(member.member_id for member in members)
        owners: dict[NamedPartition, str] = {}
        for member in members:
            subscription = read_subscription(member.metadata)
            assert subscription is not None
            owners.update(dict.fromkeys(subscription.owned, member.member_id))
        shares: dict[str, set[NamedPartition]] = {member_id: set() for member_id in ids}
        start = self.world.random.randrange(len(ids))
        self.has_withheld, self.counted = False, self.world.partition_count
        for index in range(self.world.partition_count):
            share = ids[(start + index) % len(ids)]
            if owners.get(("orders", index), share) == share:
                shares[share].add(("orders", index))
            else:
                self.has_withheld = True
        return tuple((member_id, write_assignment(share, 1)) for member_id, share in shares.items())

    def _on_synced(self, reply: SyncReply) -> None:
        if reply.error.name != "none":
            self._on_error(reply.error.name)
            return
        assigned = read_assignment(reply.assignment)
        assert assigned is not None
        if self.asked_classic_group:
            self.world.given_in(self.generation, self.instance_id or self.member_id, assigned)
        gave_up = self.owned - assigned
        self.owned = assigned
        self.step = "join" if gave_up or self.has_withheld else "beat"
        self.has_withheld = False

    def leave(self) -> None:
        if self.is_alive and self.member_id and self.instance_id is None:
            self.world.send(None, LeaveGroup(group=GROUP, members=(LeavingMember(member_id=self.member_id),)))
        self.kill()


class ConsumerClient(Client):
    """A slow member: it adopts an assignment at a later heartbeat, and keeps its partitions until then.

    If a reply is lost, it does not continue with its previous assignment: it has reported its partitions, and the
    coordinator may have given the rest to others. (ADR 10 describes clients that do continue.)
    """

    regex: str | None = None
    """The regular expression that it subscribes with, instead of the topic's name."""
    has_resubscribed = False

    def resubscribe(self, number: int) -> None:
        if self.ticket is None:
            self.regex = (None, "or.*", "ord.*")[number % 3]
            self.has_resubscribed = True

    def forget(self) -> None:
        self.member_id = self.world.fresh_id()
        self.epoch = 0
        self.owned = self.target = NOTHING
        self.is_full = True

    @property
    def generation(self) -> int:
        return self.epoch or -1

    @generation.setter
    def generation(self, generation: int) -> None:
        pass

    def is_valid(self, epoch: int) -> bool:
        return True

    @property
    def owned_ids(self) -> Assignment:
        return self.owned

    @property
    def is_settled(self) -> bool:
        return self.epoch > 0 and self.owned == self.target

    def on_lost(self) -> None:
        self.is_full, self.target = True, self.owned

    def act(self) -> None:
        if self.is_alive and self.ticket is None:
            if self.world.random.random() < 0.5:
                self.owned = self.target
            is_full = self.is_full or self.epoch == 0
            says_topics = is_full or self.has_resubscribed
            request = ConsumerHeartbeat(
                group=GROUP,
                member_id=self.member_id,
                member_epoch=self.epoch,
                instance_id=self.instance_id,
                rebalance_timeout_ms=REBALANCE_MS if is_full else -1,
                subscribed_names=(("orders",) if self.regex is None else ()) if says_topics else None,
                subscribed_regex=(self.regex or "") if says_topics else None,
                owned=self.owned if is_full or self.world.random.random() < 0.7 else None,
            )
            self.ticket = self.world.send(self, request)

    def on_reply(self, reply: Reply) -> None:
        assert isinstance(reply, ConsumerHeartbeatReply)
        error = reply.error.name
        if error == "none":
            self.is_full = self.has_resubscribed = False
            self.epoch = reply.member_epoch
            if reply.assignment is not None:
                self.target = reply.assignment
        elif error == "fenced_member_epoch":
            self.epoch, self.owned, self.target = 0, NOTHING, NOTHING
        elif error not in ("unreleased_instance_id", "not_coordinator"):
            self.forget()

    def leave(self) -> None:
        if self.is_alive and self.epoch > 0:
            epoch = -1 if self.instance_id is None else -2
            request = ConsumerHeartbeat(
                group=GROUP, member_id=self.member_id, member_epoch=epoch, instance_id=self.instance_id
            )
            self.kill()
            self.world.send(None, request)
        self.kill()
