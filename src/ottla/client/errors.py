"""The exceptions of the client, one type for each case that a program would handle differently.

Each message is a sentence for a person: what happened, where, and what to do next. For example:

    try:
        await producer.send("orders", b"value")
    except DeliveryError as error:
        print(error, error.may_be_written)
"""

from __future__ import annotations

from ottla.net.errors import (
    AuthenticationFailedError,
    ClientError,
    ConnectionLostError,
    NoBrokerError,
    RequestTimedOutError,
    UnsupportedByBrokerError,
    connect_failed,
)
from ottla.protocol.model.errors import ErrorCode

__all__ = [
    "AuthenticationFailedError",
    "BrokerRefusedError",
    "BufferFullError",
    "ClientClosedError",
    "ClientError",
    "CommitFailedError",
    "ConnectionLostError",
    "CorruptBatchError",
    "DeliveryError",
    "DeliveryTimedOutError",
    "DeserializationError",
    "FencedInstanceError",
    "GroupNotEmptyError",
    "NoBrokerError",
    "OffsetOutOfRangeError",
    "ProducerFencedError",
    "RebalancingError",
    "RecordTooLargeError",
    "RequestTimedOutError",
    "SequenceLostError",
    "SerializationError",
    "TopicExistsError",
    "TransactionAbortedError",
    "TransactionStateError",
    "TransactionUnresolvedError",
    "UnknownGroupError",
    "UnknownTopicError",
    "UnknownTransactionalIdError",
    "UnsupportedByBrokerError",
    "connect_failed",
    "error_name",
    "refused",
]


class BrokerRefusedError(ClientError):
    """The broker replied with an error code."""

    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error

    @property
    def retriable(self) -> bool:
        """Whether Kafka calls the error retriable."""
        return self.error.retriable


class UnknownTopicError(BrokerRefusedError):
    """The topic or partition does not exist."""


class TopicExistsError(BrokerRefusedError):
    """A topic with this name already exists."""


class UnknownGroupError(BrokerRefusedError):
    """There is no group with this name."""


class GroupNotEmptyError(BrokerRefusedError):
    """The group has members, and the request requires an empty group."""


class UnknownTransactionalIdError(BrokerRefusedError):
    """No coordinator knows the transactional id."""


class FencedInstanceError(BrokerRefusedError):
    """Another consumer joined the group with the same `group_instance_id`. This one has stopped."""


class CommitFailedError(BrokerRefusedError):
    """The group continued without this consumer, so its partitions may have other owners. Nothing was committed.

    The next fetch rejoins the group. Records read since the last commit are read again by the current owner.
    """


class RebalancingError(BrokerRefusedError):
    """Offsets cannot be committed during a rebalance. Fetch, then commit again."""


class OffsetOutOfRangeError(BrokerRefusedError):
    """The requested offset is not in the log, and `auto_offset_reset` is "none"."""


class DeliveryError(ClientError):
    """Records were not acknowledged.

    `error` is the broker's error code, if any. `may_be_written` means that a request with the records was sent and no
    reply has ruled out that they are in the log.
    """

    def __init__(self, message: str, error: ErrorCode | None = None, *, may_be_written: bool = False) -> None:
        super().__init__(message)
        self.error = error
        self.may_be_written = may_be_written


class RecordTooLargeError(DeliveryError):
    """A single record exceeds the size limit of the producer or of the broker."""


class DeliveryTimedOutError(DeliveryError):
    """`delivery_timeout_ms` expired."""


class ProducerFencedError(DeliveryError):
    """Another producer took over this producer's id with a higher epoch. This producer must not write any more."""


class TransactionAbortedError(DeliveryError):
    """The transaction was aborted, so read_committed consumers see none of its records. It can be retried."""


class TransactionUnresolvedError(DeliveryError):
    """The outcome of the transaction is unknown: it is committed or aborted as a whole.

    This producer has stopped. A new one with the same `transactional_id` starts once the outcome is settled.
    """


class TransactionStateError(ClientError):
    """The call is not valid in this state, such as sending outside of a transaction or nesting transactions."""


class SequenceLostError(DeliveryError):
    """The broker lost records that it acknowledged to this producer, so order and exactly-once are not guaranteed."""


class BufferFullError(ClientError):
    """`send_nowait` found no room in the producer's buffer. `enqueue` and `send` wait for room instead."""


class ClientClosedError(ClientError):
    """The producer, consumer or admin client was closed."""


class CorruptBatchError(ClientError):
    """A record batch fails its checksum or cannot be decoded. Its records are never returned."""

    def __init__(self, topic: str, partition: int, offset: int, reason: str) -> None:
        super().__init__(
            f"the batch at offset {offset} of {topic}-{partition} is damaged: {reason}. `ottla log verify` on "
            "the broker's machine shows the file; seek past the batch to skip it."
        )
        self.topic = topic
        self.partition = partition
        self.offset = offset


class SerializationError(ClientError):
    """A `key_serializer` or `value_serializer` failed. Nothing was sent. `__cause__` is its exception."""

    def __init__(self, topic: str, what: str, cause: Exception) -> None:
        super().__init__(f"the {what}_serializer failed for a record of {topic!r}: {type(cause).__name__}: {cause}")
        self.topic = topic
        self.what = what


class DeserializationError(ClientError):
    """A `key_deserializer` or `value_deserializer` failed. The consumer's position stays before the record.

    `data` has the bytes of the key or of the value (`what`). To skip the record, call `consumer.seek(error.at,
    error.offset + 1)`.
    """

    def __init__(self, topic: str, partition: int, offset: int, what: str, data: bytes, cause: Exception) -> None:
        super().__init__(
            f"the {what}_deserializer failed for the record at offset {offset} of {topic}-{partition}: "
            f"{type(cause).__name__}: {cause}. The position is unchanged; seek past the record to skip it."
        )
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.what = what
        self.data = data

    @property
    def at(self) -> tuple[str, int]:
        """The topic and the partition."""
        return self.topic, self.partition


_SPECIFIC: dict[ErrorCode, type[BrokerRefusedError]] = {
    ErrorCode.unknown_topic_or_partition: UnknownTopicError,
    ErrorCode.unknown_topic_id: UnknownTopicError,
    ErrorCode.topic_already_exists: TopicExistsError,
    ErrorCode.offset_out_of_range: OffsetOutOfRangeError,
    ErrorCode.group_id_not_found: UnknownGroupError,
    ErrorCode.non_empty_group: GroupNotEmptyError,
    ErrorCode.fenced_instance_id: FencedInstanceError,
    ErrorCode.transactional_id_not_found: UnknownTransactionalIdError,
}

_SENTENCES: dict[ErrorCode, str] = {
    ErrorCode.unknown_topic_or_partition: "it does not exist",
    ErrorCode.unknown_topic_id: "it no longer exists",
    ErrorCode.offset_out_of_range: "the log has no such offset",
    ErrorCode.topic_already_exists: "a topic of this name already exists",
    ErrorCode.invalid_topic_exception: "the name is not a valid topic name (1 to 249 of a-z A-Z 0-9 . _ -)",
    ErrorCode.kafka_storage_error: "the broker cannot write to its disk; see the broker's log",
    ErrorCode.message_too_large: "the broker's message.max.bytes or the topic's max.message.bytes is smaller",
    ErrorCode.not_enough_replicas: "fewer replicas are in sync than min.insync.replicas requires",
    ErrorCode.topic_authorization_failed: "this client is not authorized to use the topic",
    ErrorCode.group_authorization_failed: "this client is not authorized to use the group",
    ErrorCode.group_id_not_found: "there is no such group",
    ErrorCode.non_empty_group: "it has members; stop them first",
    ErrorCode.group_subscribed_to_topic: "a member of the group subscribes to the topic",
    ErrorCode.invalid_group_id: "the name is not a valid group name",
    ErrorCode.coordinator_not_available: "no broker coordinates the group at the moment; try again",
    ErrorCode.coordinator_load_in_progress: "its coordinator is still loading the group; try again",
    ErrorCode.fenced_instance_id: "another consumer has taken over its group_instance_id; this one has stopped",
    ErrorCode.unreleased_instance_id: (
        "another consumer of the same group_instance_id is still a member; it has to leave or time out first"
    ),
    ErrorCode.inconsistent_group_protocol: "its members use another group_protocol, or no assignor of this consumer",
    ErrorCode.invalid_session_timeout: (
        "session_timeout_ms is outside the range of the broker's group.min.session.timeout.ms and "
        "group.max.session.timeout.ms"
    ),
    ErrorCode.group_max_size_reached: "it has as many members as the broker's group.max.size allows",
    ErrorCode.unsupported_assignor: "the broker has no such assignor",
    ErrorCode.transactional_id_not_found: "there is no such transactional id",
    ErrorCode.transaction_coordinator_fenced: "it was fenced by a newer transaction coordinator",
    ErrorCode.invalid_transaction_timeout: "the timeout is larger than the broker's transaction.max.timeout.ms",
    ErrorCode.not_coordinator: "its coordinator is moving to another broker; try again",
    ErrorCode.concurrent_transactions: "its last transaction is still being completed; try again",
    ErrorCode.transactional_id_authorization_failed: "this client is not authorized to use the transactional id",
    ErrorCode.invalid_txn_state: "its coordinator has no such transaction, or has ended it with the other outcome",
    ErrorCode.transaction_abortable: "the coordinator requires the transaction to be aborted",
    ErrorCode.invalid_producer_id_mapping: "it has expired, or belongs to another producer",
}


def error_name(error: ErrorCode) -> str:
    """Returns Kafka's spelling, which search engines find."""
    return error.name.upper()


def refused(error: ErrorCode, what: str, message: str | None = None) -> BrokerRefusedError:
    """Returns the exception for a broker's error code. `what` names what failed, such as `topic "orders"`."""
    ours = _SENTENCES.get(error)
    reason = ours if ours is not None and (message is None or error in _SPECIFIC) else message
    kind = _SPECIFIC.get(error, BrokerRefusedError)
    return kind(error, f"{what}: {(reason or 'refused').rstrip('.')} ({error_name(error)})")
