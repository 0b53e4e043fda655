"""Asyncio clients of the Kafka protocol: producer, consumer and admin, by record and by Arrow table.

They speak to Ottla and to Apache Kafka 3.0 or later.
"""

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
