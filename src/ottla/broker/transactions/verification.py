"""Asks a transaction's coordinator, on this or another broker, on behalf of a partition leader (KIP-890)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ottla.broker.coordinators.led_shards import coordinator_of
from ottla.broker.coordinators.peers import PeerAddresses, Peers
from ottla.broker.partition.transaction_verification import VerificationRequest
from ottla.broker.topics.topics import Topics
from ottla.broker.transactions.marker_sender import by_topic
from ottla.broker.transactions.settings import STATE_TOPIC
from ottla.broker.transactions.transactions import Transactions
from ottla.machines.transactions.records import EPOCH_BUMPS_SINCE_VERSION, TopicPartition
from ottla.machines.transactions.replies import AddPartitionsReply
from ottla.machines.transactions.requests import AddPartitions
from ottla.net.apis import ClientApi, call
from ottla.net.connection import Connection
from ottla.protocol.model.errors import ErrorCode, Refused

ADD_PARTITIONS_TO_TXN = ClientApi(24, "AddPartitionsToTxn", (5, 5))

Errors = Mapping[TopicPartition, ErrorCode]


class CoordinatorVerifier:
    """Implements `transaction_verification.Verifier`: asks the coordinators."""

    def __init__(self, topics: Topics, transactions: Transactions, peer_addresses: PeerAddresses) -> None:
        self._topics = topics
        self._transactions = transactions
        self._peers: Peers[VerificationRequest, Errors] = Peers(peer_addresses, _exchange)

    def stop(self) -> None:
        """Disconnects from other brokers. Verifications without a reply fail with NETWORK_EXCEPTION."""
        self._peers.stop()

    async def verify(self, asked: VerificationRequest) -> Errors:
        outcome = await self._ask(asked)
        if isinstance(outcome, ErrorCode):
            return dict.fromkeys(asked.partitions, outcome)
        return {name: _as_producers_know_it(error) for name, error in outcome.items()}

    async def _ask(self, asked: VerificationRequest) -> Errors | ErrorCode:
        coordinator = coordinator_of(self._topics.get(STATE_TOPIC), asked.transactional_id)
        if coordinator is None:
            return ErrorCode.coordinator_not_available
        if coordinator == self._peers.node_id:
            return await self._ask_here(asked)
        answer = await self._peers.ask(coordinator, asked)
        return ErrorCode.network_exception if answer is None else answer

    async def _ask_here(self, asked: VerificationRequest) -> Errors | ErrorCode:
        request = AddPartitions(
            transactional_id=asked.transactional_id,
            producer_id=asked.producer_id,
            producer_epoch=asked.producer_epoch,
            partitions=asked.partitions,
            transaction_version=asked.transaction_version,
            verify_only=_verifies_only(asked),
        )
        reply = await self._transactions.ask(request, asked.transactional_id)
        if isinstance(reply, Refused):
            return reply.error
        assert isinstance(reply, AddPartitionsReply), f"unexpected response to AddPartitions: {reply}"
        return dict(reply.errors)


def _verifies_only(asked: VerificationRequest) -> bool:
    return asked.transaction_version < EPOCH_BUMPS_SINCE_VERSION


def _as_producers_know_it(error: ErrorCode) -> ErrorCode:
    """Translates an error for a produce reply, which never has PRODUCER_FENCED."""
    return ErrorCode.invalid_producer_epoch if error is ErrorCode.producer_fenced else error


async def _exchange(connection: Connection, items: Sequence[VerificationRequest]) -> list[Errors]:
    transactions = [
        {
            "transactional_id": item.transactional_id,
            "producer_id": item.producer_id,
            "producer_epoch": item.producer_epoch,
            "verify_only": _verifies_only(item),
            "topics": [{"name": name, "partitions": indexes} for name, indexes in by_topic(item.partitions).items()],
        }
        for item in items
    ]
    what = "verifying a transaction"
    answer = await call(connection, ADD_PARTITIONS_TO_TXN, {"transactions": transactions}, what=what)
    if answer.error_code:
        return [dict.fromkeys(item.partitions, ErrorCode(answer.error_code)) for item in items]
    return [
        {
            TopicPartition(topic.name, partition.partition_index): ErrorCode(partition.partition_error_code)
            for topic in found.topic_results
            for partition in topic.results_by_partition
        }
        for found in answer.results_by_transaction
    ]
