"""Executes a reassignment plan: sends it to the controller, and waits until the replicas have moved."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.cli.failures import CommandError
from ottla.cli.output import count_text, say

if TYPE_CHECKING:
    from ottla.client import Admin
    from ottla.client.admin.replica_plans import Replicas
    from ottla.client.consumer.types import TopicPartition

POLL_S = 0.25
NEWS_S = 2.0
HEARSAY_S = 5.0
"""How long moves must look cancelled or redirected before that is believed.

The metadata of the broker that answers may be older than the controller's.
"""
PARTITIONS_A_REQUEST = 100
NAMED_MAX = 3


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of the partitions of a plan."""

    done: list[TopicPartition]
    under_way: list[TopicPartition]
    elsewhere: list[TopicPartition]
    """Neither moved nor moving: never requested, cancelled, or redirected since."""


async def current_assignment(admin: Admin) -> dict[TopicPartition, Replicas]:
    """Returns the replicas of all partitions. For a partition that is being reassigned, returns the target replicas."""
    from ottla.client.consumer.types import TopicPartition

    moving = await admin.list_partition_reassignments()
    found: dict[TopicPartition, Replicas] = {}
    for topic, partitions in (await admin.describe_all_partitions()).items():
        for each in partitions:
            at = TopicPartition(topic, each.index)
            found[at] = tuple(moving[at].target if at in moving else each.replicas)
    return found


async def request_moves(admin: Admin, targets: Mapping[TopicPartition, Sequence[int] | None]) -> None:
    """Requests the moves. Raises FailedError that names the rejected ones; the other moves have started by then."""
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
        others = f" The request for the other {count_text(rest, 'partition')} succeeded." if rest else ""
        raise CommandError(f"{count_text(len(refused), 'partition')} rejected: {reasons}.{others}")


async def progress_of(admin: Admin, targets: Mapping[TopicPartition, Sequence[int]]) -> Progress:
    """Returns how far a plan has been executed."""
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
    """Waits until a plan is executed, and reports progress.

    Raises FailedError on a timeout, or if somebody else has cancelled or redirected the moves.
    """
    from ottla.client.errors import ConnectionLostError, NoBrokerError, RequestTimedOutError

    started = said_at = seen_at = time.monotonic()
    while True:
        progress = None
        with suppress(ConnectionLostError, NoBrokerError, RequestTimedOutError):  # that broker is shutting down
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
            raise CommandError(
                f"not all replicas have moved after {timeout_s:g} s. The moves continue; `ottla cluster "
                "reassign --list` shows them"
            )
        await asyncio.sleep(POLL_S)
    if progress.elsewhere:
        names = ", ".join(map(str, progress.elsewhere[:NAMED_MAX]))
        raise CommandError(f"{names}: cancelled, deleted or reassigned by someone else")
