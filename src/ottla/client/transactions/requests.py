"""The requests of a transactional producer, and how to read their replies. Values only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from ottla.client.consumer.types import TopicPartition
from ottla.client.groups.offsets import ToCommit
from ottla.client.groups.steps import Identity as MemberIdentity
from ottla.client.producer.batches import Identity
from ottla.net.apis import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    END_TXN_IN_V1,
    END_TXN_IN_V2,
    INIT_PRODUCER_ID,
    TXN_OFFSET_COMMIT_IN_V1,
    TXN_OFFSET_COMMIT_IN_V2,
    ClientApi,
)
from ottla.protocol.model.errors import ErrorCode

NO_IDENTITY = Identity(-1, -1)


@dataclass(frozen=True, slots=True)
class Request:
    """A request and the function that finds the error in its reply."""

    api: ClientApi
    body: Mapping[str, Any]
    what: str
    error_of: Callable[[Any], ErrorCode]
    """Selects the relevant error of a reply."""


def init_producer(transactional_id: str, timeout_ms: int, identity: Identity | None) -> Request:
    """InitProducerId. With an `identity`, the same producer continues with the next epoch unless it was fenced."""
    producer_id, epoch = identity or NO_IDENTITY
    body = {
        "transactional_id": transactional_id,
        "transaction_timeout": timedelta(milliseconds=timeout_ms),
        "producer_id": producer_id,
        "producer_epoch": epoch,
    }
    return Request(INIT_PRODUCER_ID, body, "requesting a producer id", _error_code)


def add_partitions(transactional_id: str, identity: Identity, partitions: Iterable[TopicPartition]) -> Request:
    """AddPartitionsToTxn."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(partition)
    body = {
        "v3_and_below_transactional_id": transactional_id,
        "v3_and_below_producer_id": identity.producer_id,
        "v3_and_below_producer_epoch": identity.epoch,
        "v3_and_below_topics": [{"name": name, "partitions": indexes} for name, indexes in topics.items()],
    }
    return Request(ADD_PARTITIONS_TO_TXN, body, "adding partitions to the transaction", _first_added_error)


def add_offsets(transactional_id: str, identity: Identity, group_id: str) -> Request:
    """AddOffsetsToTxn."""
    body = {**_signed(transactional_id, identity), "group_id": group_id}
    return Request(ADD_OFFSETS_TO_TXN, body, "adding offsets to the transaction", _error_code)


def commit_offsets(
    transactional_id: str, identity: Identity, version: int, group_id: str, member: MemberIdentity, offsets: ToCommit
) -> Request:
    """TxnOffsetCommit."""
    topics: dict[str, list[dict[str, Any]]] = {}
    for (topic, partition), (offset, metadata) in offsets.items():
        entry = {
            "partition_index": partition,
            "committed_offset": offset,
            "committed_leader_epoch": -1,
            "committed_metadata": metadata,
        }
        topics.setdefault(topic, []).append(entry)
    body = {
        **_signed(transactional_id, identity),
        "group_id": group_id,
        "generation_id": member.generation,
        "member_id": member.member_id,
        "group_instance_id": member.instance_id,
        "topics": [{"name": name, "partitions": partitions} for name, partitions in topics.items()],
    }
    api = TXN_OFFSET_COMMIT_IN_V2 if version >= 2 else TXN_OFFSET_COMMIT_IN_V1
    return Request(api, body, f'committing offsets of group "{group_id}" in the transaction', _first_committed_error)


def end(transactional_id: str, identity: Identity, version: int, *, commit: bool) -> Request:
    """EndTxn."""
    body = {**_signed(transactional_id, identity), "committed": commit}
    what = "committing the transaction" if commit else "aborting the transaction"
    return Request(END_TXN_IN_V2 if version >= 2 else END_TXN_IN_V1, body, what, _error_code)


def identity_in(reply: Any, otherwise: Identity) -> Identity:
    """Returns the identity to continue with. An EndTxn reply has none before transaction version 2."""
    producer_id = int(getattr(reply, "producer_id", -1))
    return Identity(producer_id, int(reply.producer_epoch)) if producer_id >= 0 else otherwise


def _signed(transactional_id: str, identity: Identity) -> dict[str, Any]:
    return {
        "transactional_id": transactional_id,
        "producer_id": identity.producer_id,
        "producer_epoch": identity.epoch,
    }


def _error_code(reply: Any) -> ErrorCode:
    return ErrorCode(reply.error_code)


def _first_added_error(reply: Any) -> ErrorCode:
    return _most_telling(
        each.partition_error_code
        for topic in reply.results_by_topic_v3_and_below
        for each in topic.results_by_partition
    )


def _first_committed_error(reply: Any) -> ErrorCode:
    return _most_telling(each.error_code for topic in reply.topics for each in topic.partitions)


def _most_telling(errors: Iterable[Any]) -> ErrorCode:
    """Returns the first error, preferably not operation_not_attempted: it only means that another one was refused."""
    found = [ErrorCode(error) for error in errors if error]
    telling = [error for error in found if error is not ErrorCode.operation_not_attempted]
    return (telling or found or [ErrorCode.none])[0]
