"""Operations that the controller carries out for clients: reassigns replicas and elects leaders. Other brokers redirect
their clients to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ottla.broker.cluster.commits import commit
from ottla.broker.cluster.controller_loop import ControllerLoop
from ottla.broker.cluster.membership import Membership
from ottla.broker.metadata import Answers, Place
from ottla.coordination.port import OutcomeUnknownError, UnavailableError
from ottla.machines.controller.partition_requests import (
    ControllerContext,
    ElectionType,
    Outcomes,
    Reassignment,
    TopicPartitionName,
    elect_leaders,
    list_reassignments,
    reassign,
)
from ottla.machines.controller.rules import RuleBook
from ottla.protocol.model.errors import ErrorCode, Refused


class ControllerPartitionAdmin:
    """A `PartitionAdmin` that acts if this broker is the controller, and refuses otherwise."""

    def __init__(
        self, membership: Membership, controller: ControllerLoop, rules: RuleBook, *, allow_shared_machine: bool
    ) -> None:
        self._membership = membership
        self._controller = controller
        self._rules = rules
        self._allow_shared_machine = allow_shared_machine

    async def reassign(self, targets: Mapping[Place, Sequence[int] | None]) -> Answers | Refused:
        """Begins reassignments. A target of None cancels one."""
        controlling = self._controlling()
        if isinstance(controlling, Refused):
            return controlling
        named = {TopicPartitionName(*place): replicas for place, replicas in targets.items()}
        return await self._carry_out(reassign(controlling, named, allow_shared_machine=self._allow_shared_machine))

    async def elect(self, places: Iterable[Place] | None, *, unclean: bool) -> Answers | Refused:
        """Elects leaders for these partitions, or for all of them if None."""
        controlling = self._controlling()
        if isinstance(controlling, Refused):
            return controlling
        election_type = ElectionType.UNCLEAN if unclean else ElectionType.PREFERRED
        return await self._carry_out(elect_leaders(controlling, _named(places), election_type))

    def reassignments(self, places: Iterable[Place] | None) -> Mapping[Place, Reassignment]:
        """Returns the ongoing reassignments of these partitions, or of all of them if None."""
        found = list_reassignments(self._membership.image, _named(places))
        return {(named.topic, named.partition): reassignment for named, reassignment in found.items()}

    def _controlling(self) -> ControllerContext | Refused:
        entry = self._controller.entry
        if entry is None:
            return Refused(ErrorCode.not_controller)
        return ControllerContext(self._membership.image, entry, self._rules, self._controller.limits)

    async def _carry_out(self, outcomes: Outcomes) -> Answers | Refused:
        membership = self._membership
        for write in outcomes.writes:
            try:
                revision = await commit(membership.store, write)
            except UnavailableError as error:
                return Refused(ErrorCode.coordinator_not_available, str(error))
            except OutcomeUnknownError:
                why = "the outcome of the write to the coordination store is unknown"
                return Refused(ErrorCode.request_timed_out, why)
            if revision is None:
                return Refused(ErrorCode.request_timed_out, "the metadata changed concurrently; retry")
            await membership.seen(revision)
        return {(named.topic, named.partition): refused for named, refused in outcomes.refused.items()}


def _named(places: Iterable[Place] | None) -> list[TopicPartitionName] | None:
    return None if places is None else [TopicPartitionName(*place) for place in places]
