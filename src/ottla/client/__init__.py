"""Clients of the Kafka protocol: producer, consumer and admin, by record and by Arrow table.

    from ottla.client import Consumer, Producer

    async with Producer("127.0.0.1:9092") as producer:
        await producer.send("orders", b"value", b"key")

`Producer`, `Consumer` and `Admin` are for asyncio. `SyncProducer`, `SyncConsumer` and `SyncAdmin` are their blocking
counterparts for plain scripts and threads. They work with Ottla and with Apache Kafka 3.0 or later.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ottla.client.admin.admin import HIGH_WATERMARK, Admin
    from ottla.client.consumer.consumer import Consumer
    from ottla.client.consumer.list_offsets import OffsetAndTimestamp
    from ottla.client.consumer.types import ConsumerRecord, TopicPartition
    from ottla.client.errors import (
        AuthenticationFailedError,
        BrokerRefusedError,
        BufferFullError,
        ClientClosedError,
        ClientError,
        CommitFailedError,
        ConnectionLostError,
        CorruptBatchError,
        DeliveryError,
        DeliveryTimedOutError,
        DeserializationError,
        FencedInstanceError,
        GroupNotEmptyError,
        NoBrokerError,
        OffsetOutOfRangeError,
        ProducerFencedError,
        RebalancingError,
        RecordTooLargeError,
        RequestTimedOutError,
        SequenceLostError,
        SerializationError,
        TopicExistsError,
        TransactionAbortedError,
        TransactionStateError,
        TransactionUnresolvedError,
        UnknownGroupError,
        UnknownTopicError,
        UnknownTransactionalIdError,
        UnsupportedByBrokerError,
    )
    from ottla.client.groups.offsets import OffsetAndMetadata
    from ottla.client.producer.deliveries import RecordMetadata, TablePart
    from ottla.client.producer.producer import Producer
    from ottla.client.security import BadClientPropertiesError, ConnectionSecurity, SaslLogin, security_from
    from ottla.client.sync import SyncAdmin, SyncConsumer, SyncProducer, SyncTransaction
    from ottla.client.transactions.prepared_transactions import PreparedTransaction, PreparedTransactions
    from ottla.client.transactions.transaction import Transaction

__all__ = [
    "HIGH_WATERMARK",
    "Admin",
    "AuthenticationFailedError",
    "BadClientPropertiesError",
    "BrokerRefusedError",
    "BufferFullError",
    "ClientClosedError",
    "ClientError",
    "CommitFailedError",
    "ConnectionLostError",
    "ConnectionSecurity",
    "Consumer",
    "ConsumerRecord",
    "CorruptBatchError",
    "DeliveryError",
    "DeliveryTimedOutError",
    "DeserializationError",
    "FencedInstanceError",
    "GroupNotEmptyError",
    "NoBrokerError",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "OffsetOutOfRangeError",
    "PreparedTransaction",
    "PreparedTransactions",
    "Producer",
    "ProducerFencedError",
    "RebalancingError",
    "RecordMetadata",
    "RecordTooLargeError",
    "RequestTimedOutError",
    "SaslLogin",
    "SequenceLostError",
    "SerializationError",
    "SyncAdmin",
    "SyncConsumer",
    "SyncProducer",
    "SyncTransaction",
    "TablePart",
    "TopicExistsError",
    "TopicPartition",
    "Transaction",
    "TransactionAbortedError",
    "TransactionStateError",
    "TransactionUnresolvedError",
    "UnknownGroupError",
    "UnknownTopicError",
    "UnknownTransactionalIdError",
    "UnsupportedByBrokerError",
    "security_from",
]

_MODULES = {
    "HIGH_WATERMARK": "admin.admin",
    "Admin": "admin.admin",
    "BrokerRefusedError": "errors",
    "BufferFullError": "errors",
    "ClientClosedError": "errors",
    "ClientError": "errors",
    "CommitFailedError": "errors",
    "ConnectionLostError": "errors",
    "Consumer": "consumer.consumer",
    "ConsumerRecord": "consumer.types",
    "CorruptBatchError": "errors",
    "DeliveryError": "errors",
    "DeliveryTimedOutError": "errors",
    "DeserializationError": "errors",
    "FencedInstanceError": "errors",
    "GroupNotEmptyError": "errors",
    "NoBrokerError": "errors",
    "OffsetAndMetadata": "groups.offsets",
    "OffsetAndTimestamp": "consumer.list_offsets",
    "OffsetOutOfRangeError": "errors",
    "PreparedTransaction": "transactions.prepared_transactions",
    "PreparedTransactions": "transactions.prepared_transactions",
    "Producer": "producer.producer",
    "ProducerFencedError": "errors",
    "RebalancingError": "errors",
    "RecordMetadata": "producer.deliveries",
    "RecordTooLargeError": "errors",
    "RequestTimedOutError": "errors",
    "SequenceLostError": "errors",
    "SerializationError": "errors",
    "SyncAdmin": "sync",
    "SyncConsumer": "sync",
    "SyncProducer": "sync",
    "SyncTransaction": "sync",
    "TablePart": "producer.deliveries",
    "TopicExistsError": "errors",
    "TopicPartition": "consumer.types",
    "Transaction": "transactions.transaction",
    "TransactionAbortedError": "errors",
    "TransactionStateError": "errors",
    "TransactionUnresolvedError": "errors",
    "UnknownGroupError": "errors",
    "UnknownTopicError": "errors",
    "UnknownTransactionalIdError": "errors",
    "UnsupportedByBrokerError": "errors",
    "AuthenticationFailedError": "errors",
    "BadClientPropertiesError": "security",
    "ConnectionSecurity": "security",
    "SaslLogin": "security",
    "security_from": "security",
}


def __getattr__(name: str) -> Any:
    """Imports a name on first use: a broker imports only the connection from here, not the consumer."""
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{module}"), name)
    return found
