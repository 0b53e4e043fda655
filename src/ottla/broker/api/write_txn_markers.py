"""WriteTxnMarkers (key 27), v1-2.

Behaviour: a transaction coordinator ends a transaction in partitions that are led here. Each partition gets a control
batch, and its result is returned when every in-sync replica has the batch. A marker that is already in the log is not
written again. A marker of a superseded coordinator gets TRANSACTION_COORDINATOR_FENCED, one of an earlier producer
epoch INVALID_PRODUCER_EPOCH.
Versions: v2 has the transaction version by which the transaction was ended.
Not implemented: nothing.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from ottla.broker.api import authorization_table as rules
from ottla.broker.api.api import Api, Context, part, reply
from ottla.broker.api.authorization import permits, refusal
from ottla.broker.api.partitions import find_partition
from ottla.broker.blocking_jobs import resolve
from ottla.broker.partition.markers import write_marker
from ottla.machines.transactions.partition_table import Marker
from ottla.protocol.model.errors import ErrorCode, Refused

if TYPE_CHECKING:
    from kio.schema.write_txn_markers.v2 import WriteTxnMarkersRequest
    from kio.schema.write_txn_markers.v2.request import WritableTxnMarker

    from ottla.broker.broker import Broker

API = Api(27, "WriteTxnMarkers", (1, 2))

TIMEOUT_MS = 30_000
"""Kafka's request.timeout.ms. Appended markers stay in the log and are found when the coordinator retries."""
Place = tuple[int, str, int]
"""Index of the marker, topic, partition."""


async def handle(ctx: Context, request: WriteTxnMarkersRequest) -> object:
    """Appends the markers that a transaction coordinator sends, and replies once all are committed."""
    refused = None if permits(ctx, rules.WRITE_MARKERS_AS_ADMIN) else refusal(ctx, rules.WRITE_MARKERS)
    writing = PendingMarkers(ctx.broker, refused)
    for number, asked in enumerate(request.markers):
        for topic in asked.topics:
            for index in topic.partition_indexes:
                writing.begin((number, topic.name, index), to_marker(asked))
    errors = await writing.wait()
    return reply(
        ctx, markers=tuple(_result(ctx, number, asked, errors) for number, asked in enumerate(request.markers))
    )


def to_marker(asked: WritableTxnMarker) -> Marker:
    """Translates a marker of the request."""
    return Marker(
        asked.producer_id,
        asked.producer_epoch,
        asked.coordinator_epoch,
        asked.transaction_result,
        getattr(asked, "transaction_version", 0),
    )


class PendingMarkers:
    """The markers of one request. All are appended before any is waited for."""

    def __init__(self, broker: Broker, refused: Refused | None = None) -> None:
        self._broker = broker
        self._refused = refused
        self._errors: dict[Place, ErrorCode] = {}
        self._unsettled: set[Place] = set()
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def ended(self) -> bool:
        """True once every marker has a result."""
        return self._done.done()

    def expire(self) -> None:
        for place in self._unsettled:
            self._errors[place] = ErrorCode.request_timed_out
        resolve(self._done, None)

    def begin(self, place: Place, marker: Marker) -> None:
        """Appends a marker."""
        if self._refused is not None:
            self._errors[place] = self._refused.error
            return
        partition = find_partition(self._broker, place[1], place[2])
        if isinstance(partition, ErrorCode):
            self._errors[place] = partition
            return
        self._unsettled.add(place)
        write_marker(partition, marker, self._broker.clock.now_ms(), partial(self._settle, place))

    def _settle(self, place: Place, error: ErrorCode) -> None:
        if not self.ended:
            self._errors[place] = error
        self._unsettled.discard(place)
        if not self._unsettled:
            # Not now: a marker may be settled at once, before the others are appended.
            self._broker.clock.call_soon(self._end)

    def _end(self) -> None:
        if not self._unsettled:
            resolve(self._done, None)

    async def wait(self) -> dict[Place, ErrorCode]:
        """Waits until all markers are acknowledged or the timeout expires. Returns the errors."""
        if self._unsettled:
            self._broker.deadlines.add(TIMEOUT_MS, self)
            await self._done
        return self._errors


def _result(ctx: Context, number: int, asked: WritableTxnMarker, errors: dict[Place, ErrorCode]) -> Any:
    topics = []
    for topic in asked.topics:
        partitions = tuple(
            part(
                ctx,
                "WritableTxnMarkerPartitionResult",
                partition_index=index,
                error_code=errors[number, topic.name, index],
            )
            for index in topic.partition_indexes
        )
        topics.append(part(ctx, "WritableTxnMarkerTopicResult", name=topic.name, partitions=partitions))
    return part(ctx, "WritableTxnMarkerResult", producer_id=asked.producer_id, topics=tuple(topics))
