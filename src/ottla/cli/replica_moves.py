"""Carries out a plan: asks the controller, and follows the replicas until they are where they should be."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.cli.failures import FailedError
from ottla.cli.output import count_text, say

if TYPE_CHECKING:
    from ottla.client import Admin
    from ottla.client.fetched import TopicPartition
    from ottla.client.replica_plans import Replicas

POLL_S = 0.25
NEWS_S = 2.0
HEARSAY_S = 5.0
"""A broker that is asked may have heard of less than the controller: what looks as if somebody had sent replicas
elsewhere has to look like that for so long."""
PARTITIONS_A_REQUEST = 100
NAMED_MAX = 3


@dataclass(frozen=True, slots=True)
class Progress:
    """Where the partitions of a plan are."""

    done: list[TopicPartition]
    under_way: list[TopicPartition]
    elsewhere: list[TopicPartition]
    """Neither there nor on the way: never asked for, cancelled, or moved elsewhere since."""


async def current_assignment(admin: Admin) -> dict[TopicPartition, Replicas]:
    """All partitions. Of one that is on its way, the replicas that it will have."""
    from ottla.client.fetched import TopicPartition

    moving = await admin.list_partition_reassignments()
    found: dict[TopicPartition, Replicas] = {}
    for topic, partitions in (await admin.describe_all_partitions()).items():
        for each in partitions:
            at = TopicPartition(topic, each.index)
            found[at] = tuple(moving[at].target if at in moving else each.replicas)
    return found


async def request_moves(admin: Admin, targets: Mapping[TopicPartition, Sequence[int] | None]) -> None:
    """Raises FailedError with what was refused; the rest is on its way then, and the sentence says so."""
    places = sorted(targets)
    refused: dict[TopicPartition, str] = {}
    for start in range(0, len(places), PARTITIONS_A_REQUEST):
        part: dict[tuple[str, int], Sequence[int] | None] = {
            at: targets[at] for at in places[start : start + PARTITIONS_A_REQUEST]
        }
        refused |= {at: str(why) for at, why in (await admin.alter_partition_reassignments(part)).items()}
    if refused:
        reasons = "; ".join(list(refused.values())[:NAMED_MAX])
        rest = len(places) - len(refused)
        others = f" The other {count_text(rest, 'partition')} did as asked." if rest else ""
        raise FailedError(f"{count_text(len(refused), 'partition')} refused: {reasons}.{others}")


async def progress_of(admin: Admin, targets: Mapping[TopicPartition, Sequence[int]]) -> Progress:
    moving = await admin.list_partition_reassignments()
    now = await admin.describe_all_partitions()
    progress = Progress([], [], [])
    for at, replicas in sorted(targets.items()):
        found = {each.index: each for each in now.get(at.topic, [])}.get(at.partition)
        if at in moving:
            on_its_way = moving[at].target == list(replicas)
            (progress.under_way if on_its_way else progress.elsewhere).append(at)
        elif found is not None and found.replicas == list(replicas):
            progress.done.append(at)
        else:
            progress.elsewhere.append(at)
    return progress


async def wait_for_moves(
    admin: Admin, targets: Mapping[TopicPartition, Sequence[int]], timeout_s: float | None
) -> None:
    """Says how far it is. Raises FailedError if time runs out, or if somebody else sent the replicas elsewhere."""
    from ottla.client.errors import ConnectionLostError, NoBrokerError, RequestTimedOutError

    started = said_at = seen_at = time.monotonic()
    while True:
        progress = None
        with suppress(ConnectionLostError, NoBrokerError, RequestTimedOutError):  # the broker that was asked is going
            progress = await progress_of(admin, targets)
        now = time.monotonic()
        if progress is None or progress.under_way:
            seen_at = now
        elif not progress.elsewhere or now - seen_at >= HEARSAY_S:
            break
        if progress is not None and now - said_at >= NEWS_S:
            said_at = now
            say(f"{len(progress.done)} of {count_text(len(targets), 'partition')} moved")
        if timeout_s is not None and now - started > timeout_s:
            raise FailedError(
                f"not all replicas have moved after {timeout_s:g} s. They go on, and `ottla cluster reassign --list`"
                " shows them"
            )
        await asyncio.sleep(POLL_S)
    if progress.elsewhere:
        names = ", ".join(map(str, progress.elsewhere[:NAMED_MAX]))
        raise FailedError(f"{names}: cancelled, deleted or moved elsewhere meanwhile")
