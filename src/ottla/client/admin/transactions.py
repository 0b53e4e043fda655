"""Administration of transactions: list them, find hanging ones, and end them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import timedelta
from typing import Any, NamedTuple

from ottla.client.admin.calls import check
from ottla.client.admin.group_calls import MOVING, TRANSACTIONAL_ID, Answer
from ottla.client.admin.transaction_descriptions import (
    OPEN,
    HangingTransactions,
    OpenTransaction,
    TransactionDescription,
    TransactionListing,
    open_transaction,
    transaction_description,
)
from ottla.client.admin.transaction_partitions import TransactionPartitionAdmin, ask_for_producers, is_open
from ottla.client.consumer.types import TopicPartition
from ottla.client.errors import BrokerRefusedError, ClientError, UnsupportedByBrokerError, refused
from ottla.client.metadata import PASSING_FAILURES, fetch_all
from ottla.net.apis import DESCRIBE_TRANSACTIONS, INIT_PRODUCER_ID, LIST_TRANSACTIONS, WRITE_TXN_MARKERS, call
from ottla.net.connection import Connection
from ottla.protocol.model.errors import ErrorCode

DURATION_FROM = 1
"""The first version of ListTransactions with durations."""
NO_DURATION = -1
NO_PRODUCER = -1
FIRST_COORDINATOR_EPOCH = 0
FENCE_TIMEOUT_MS = 60_000
STATE_TOPIC = "__transaction_state"
"""Coordinators write to this topic, and never in a transaction."""


class FencedProducer(NamedTuple):
    """A producer id and epoch that no producer uses: earlier users of the transactional id have a lower epoch."""

    producer_id: int
    producer_epoch: int


class TransactionAdmin(TransactionPartitionAdmin):
    """The transaction calls of the admin client."""

    # What coordinators know.

    async def list_transactions(
        self, *, states: Iterable[str] = (), producer_ids: Iterable[int] = (), open_for_ms: int | None = None
    ) -> list[TransactionListing]:
        """Lists the transactions of all coordinators by name; `open_for_ms` keeps only those open for longer."""
        body = {
            "state_filters": list(states),
            "producer_id_filters": list(producer_ids),
            "duration_filter": NO_DURATION if open_for_ms is None else open_for_ms,
        }
        found: dict[str, TransactionListing] = {}

        async def attempt() -> ClientError | None:
            """Asks all brokers again: if one goes away meanwhile, its transactions move to others."""
            found.clear()
            try:
                await self._metadata.refresh()
                for node_id in sorted(self._metadata.view.nodes):
                    found.update((each.transactional_id, each) for each in await self._list_of(node_id, body))
            except (*PASSING_FAILURES, BrokerRefusedError) as failure:
                if isinstance(failure, BrokerRefusedError) and failure.error not in MOVING:
                    raise
                return failure
            return None

        await self._until_complete(attempt)
        listed = sorted(found.values(), key=lambda each: each.transactional_id)
        if open_for_ms is None:
            return listed
        # Kafka's coordinators also list ids that have no transaction at all.
        return [each for each in listed if each.state in OPEN]

    async def _list_of(self, node_id: int, body: dict[str, Any]) -> list[TransactionListing]:
        connection = await self._brokers.connection(node_id)
        version = connection.version_for(LIST_TRANSACTIONS.key, LIST_TRANSACTIONS.versions, LIST_TRANSACTIONS.name)
        if body["duration_filter"] != NO_DURATION and version < DURATION_FROM:
            raise UnsupportedByBrokerError(f"the broker at {connection.address} cannot list transactions by duration")
        reply = await call(connection, LIST_TRANSACTIONS, body, what="listing the transactions")
        check(reply, f"the transactions of broker {node_id}")
        if reply.unknown_state_filters:
            raise ClientError(f"unknown transaction state {', '.join(reply.unknown_state_filters)}")
        return [
            TransactionListing(each.transactional_id, each.transaction_state, int(each.producer_id), node_id)
            for each in reply.transaction_states
        ]

    async def describe_transactions(self, transactional_ids: Iterable[str]) -> dict[str, TransactionDescription]:
        """Describes transactions by transactional id. Ids that do not exist are left out."""
        answers = await self._ask_coordinators(transactional_ids, _describe, TRANSACTIONAL_ID)
        return {
            name: transaction_description(answer.entry, answer.coordinator)
            for name, answer in answers.items()
            if _is_there(name, answer)
        }

    async def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        """Describes one transaction. Raises UnknownTransactionalIdError if the id does not exist."""
        found = await self.describe_transactions([transactional_id])
        if transactional_id not in found:
            raise TRANSACTIONAL_ID.refused(ErrorCode.transactional_id_not_found, transactional_id)
        return found[transactional_id]

    # What only partitions know.

    async def find_hanging_transactions(
        self, partitions: Iterable[tuple[str, int]] | None = None
    ) -> HangingTransactions:
        """Finds transactions that are open in a partition, of all or of some, but that no coordinator will end.

        A coordinator forgets a partition only after its marker is committed. So a transaction hangs if it was open
        before the coordinators were asked, is unknown to all of them, and is still open afterwards. There is no need to
        wait until it is older than any timeout.
        """
        wanted, unknown = await self._partitions_with_leaders(partitions)
        opened = await self._open_transactions(wanted)
        suspects = await self._unknown_to_coordinators(opened)
        still_open = {each.name for each in await self._open_transactions({each.at for each in suspects})}
        return HangingTransactions([each for each in suspects if each.name in still_open], unknown)

    async def coordinated_by(self, transaction: OpenTransaction) -> TransactionDescription | None:
        """Returns the coordinator's description of the transaction, or None if no coordinator will end it."""
        for each in await self._descriptions_of({transaction.producer_id}):
            if transaction.at in each.partitions:
                return each
        return None

    async def _partitions_with_leaders(
        self, partitions: Iterable[tuple[str, int]] | None
    ) -> tuple[set[TopicPartition], dict[TopicPartition, str]]:
        if partitions is not None:
            return {TopicPartition(*at) for at in partitions}, {}
        view, _ = await self._again(lambda: fetch_all(self._brokers))
        wanted: set[TopicPartition] = set()
        unknown: dict[TopicPartition, str] = {}
        for name, topic in view.topics.items():
            for index, each in topic.partitions.items():
                if each.leader not in view.nodes:
                    unknown[TopicPartition(name, index)] = "it has no leader"
                elif name != STATE_TOPIC:
                    wanted.add(TopicPartition(name, index))
        return wanted, unknown

    async def _open_transactions(self, partitions: Collection[TopicPartition]) -> list[OpenTransaction]:
        found = await self.describe_producers(partitions)
        return [
            open_transaction(at, state)
            for at, states in sorted(found.items())
            for state in sorted(states)
            if state.first_offset is not None
        ]

    async def _unknown_to_coordinators(self, opened: list[OpenTransaction]) -> list[OpenTransaction]:
        described = await self._descriptions_of({each.producer_id for each in opened})
        known = {(each.producer_id, at) for each in described for at in each.partitions}
        return [each for each in opened if (each.producer_id, each.at) not in known]

    async def _descriptions_of(self, producer_ids: Collection[int]) -> list[TransactionDescription]:
        if not producer_ids:
            return []
        listed = await self.list_transactions(producer_ids=sorted(producer_ids))
        return list((await self.describe_transactions(each.transactional_id for each in listed)).values())

    # Ending transactions.

    async def fence_producer(self, transactional_id: str, *, timeout_ms: int = FENCE_TIMEOUT_MS) -> FencedProducer:
        """Raises the epoch of a transactional id, which aborts its open transaction and fences its producer.

        Returns when the transaction is aborted. The producer's next request is refused. An id that does not exist is
        created. `timeout_ms` applies to transactions of the id until its next producer sets another timeout.
        """
        body = {
            "transactional_id": transactional_id,
            "transaction_timeout": timedelta(milliseconds=timeout_ms),
            "producer_id": NO_PRODUCER,
            "producer_epoch": NO_PRODUCER,
        }
        answers: dict[str, Answer] = {}

        async def question(connection: Connection, part: list[str]) -> dict[str, Answer]:
            reply = await call(connection, INIT_PRODUCER_ID, body, what=TRANSACTIONAL_ID.text(transactional_id))
            return {transactional_id: Answer(reply.error_code, reply)}

        async def attempt() -> ClientError | None:
            """Asks to fence: the first attempt aborts the open transaction, and later ones have to wait for that."""
            failure = await self._ask_round([transactional_id], question, answers, TRANSACTIONAL_ID)
            if failure is None and answers[transactional_id].error is ErrorCode.concurrent_transactions:
                failure = TRANSACTIONAL_ID.refused(answers.pop(transactional_id).error, transactional_id)
            return failure

        await self._until_complete(attempt)
        answer = answers[transactional_id]
        if answer.error is not ErrorCode.none:
            raise TRANSACTIONAL_ID.refused(answer.error, transactional_id)
        return FencedProducer(int(answer.entry.producer_id), int(answer.entry.producer_epoch))

    async def abort_in_partition(self, transaction: OpenTransaction) -> None:
        """Writes an abort marker into one partition, bypassing all coordinators, to end a hanging transaction.

        Do not use it for a transaction that has a coordinator, because that would break its atomicity: see
        `coordinated_by`. Each attempt first checks that the transaction is still open, because a superfluous marker
        would abort the producer's next transaction there.
        """
        marker = {
            "producer_id": transaction.producer_id,
            "producer_epoch": transaction.producer_epoch,
            "transaction_result": False,
            "topics": [{"name": transaction.topic, "partition_indexes": [transaction.partition]}],
            # -1 means that this producer has no marker there. Any epoch that is not refused as too old works.
            "coordinator_epoch": max(transaction.coordinator_epoch, FIRST_COORDINATOR_EPOCH),
        }

        async def question(connection: Connection, part: list[TopicPartition]) -> dict[TopicPartition, Answer]:
            known = (await ask_for_producers(connection, part))[transaction.at]
            if known.error is not ErrorCode.none or not is_open(transaction, known):
                return {transaction.at: known}
            reply = await call(connection, WRITE_TXN_MARKERS, {"markers": [marker]}, what="writing an abort marker")
            (result,) = (each for found in reply.markers for topic in found.topics for each in topic.partitions)
            return {transaction.at: Answer(result.error_code, result)}

        answer = (await self._ask_leaders([transaction.at], question))[transaction.at]
        if answer.error is not ErrorCode.none:
            raise refused(answer.error, str(transaction.at))


async def _describe(connection: Connection, names: list[str]) -> dict[str, Answer]:
    body = {"transactional_ids": names}
    reply = await call(connection, DESCRIBE_TRANSACTIONS, body, what="describing transactions")
    return {each.transactional_id: Answer(each.error_code, each) for each in reply.transaction_states}


def _is_there(name: str, answer: Answer) -> bool:
    if answer.error not in (ErrorCode.none, ErrorCode.transactional_id_not_found):
        raise TRANSACTIONAL_ID.refused(answer.error, name)
    return answer.error is ErrorCode.none
