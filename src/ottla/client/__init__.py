"""Asyncio clients of the Kafka protocol: producer, consumer and admin, by record and by Arrow table.

They speak to Ottla and to Apache Kafka 3.0 or later.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ottla.client.admin import HIGH_WATERMARK, Admin
    from ottla.client.consumer import Consumer
    from ottla.client.deliveries import RecordMetadata, TablePart
    from ottla.client.errors import ClientError
    from ottla.client.fetched import ConsumerRecord, TopicPartition
    from ottla.client.group_offsets import OffsetAndMetadata
    from ottla.client.list_offsets import OffsetAndTimestamp
    from ottla.client.prepared import PreparedTransaction, PreparedTransactions
    from ottla.client.producer import Producer
    from ottla.client.transaction import Transaction

__all__ = [
    "HIGH_WATERMARK",
    "Admin",
    "ClientError",
    "Consumer",
    "ConsumerRecord",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "PreparedTransaction",
    "PreparedTransactions",
    "Producer",
    "RecordMetadata",
    "TablePart",
    "TopicPartition",
    "Transaction",
]

_MODULES = {
    "HIGH_WATERMARK": "admin",
    "Admin": "admin",
    "ClientError": "errors",
    "Consumer": "consumer",
    "ConsumerRecord": "fetched",
    "OffsetAndMetadata": "group_offsets",
    "OffsetAndTimestamp": "list_offsets",
    "PreparedTransaction": "prepared",
    "PreparedTransactions": "prepared",
    "Producer": "producer",
    "RecordMetadata": "deliveries",
    "TablePart": "deliveries",
    "TopicPartition": "fetched",
    "Transaction": "transaction",
}


def __getattr__(name: str) -> Any:
    """Imported when it is used: a broker takes the connection from here, and no consumer."""
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{module}"), name)
    return found
