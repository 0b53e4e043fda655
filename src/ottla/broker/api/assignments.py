"""Parses manual replica assignments of CreateTopics.

Only the form of the request is checked here; the admin code knows which brokers exist.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ottla.protocol.model.errors import ErrorCode, Refused

if TYPE_CHECKING:
    from kio.schema.create_topics.v7.request import CreatableReplicaAssignment


def replicas_by_index(assignments: Iterable[CreatableReplicaAssignment]) -> list[tuple[int, ...]] | Refused:
    """Returns the replicas of each partition in order. The first replica is the preferred leader."""
    by_index: dict[int, tuple[int, ...]] = {}
    for each in assignments:
        if each.partition_index in by_index:
            return _refused(f"Found multiple manual partition assignments for partition {each.partition_index}.")
        by_index[each.partition_index] = tuple(map(int, each.broker_ids))
    if sorted(by_index) != list(range(len(by_index))):
        return _refused("The partitions of a manual assignment must be numbered from 0 without gaps.")
    return [by_index[index] for index in range(len(by_index))]


def _refused(reason: str) -> Refused:
    return Refused(ErrorCode.invalid_replica_assignment, reason)
