"""Producer and transaction state of partitions, requested from their leaders."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping

from ottla.client.admin.group_calls import Answer, GroupAdminCalls
from ottla.client.admin.partitions import by_topic
from ottla.client.admin.transaction_descriptions import OpenTransaction, ProducerState, producer_state
from ottla.client.consumer.types import TopicPartition
from ottla.client.errors import ClientError, refused
from ottla.client.metadata import PASSING_FAILURES
from ottla.net.apis import DESCRIBE_PRODUCERS, call
from ottla.net.connection import Connection
from ottla.protocol.model.errors import ErrorCode

LeaderQuestion = Callable[[Connection, list[TopicPartition]], Awaitable[Mapping[TopicPartition, Answer]]]
Answers = dict[TopicPartition, Answer]


class TransactionPartitionAdmin(GroupAdminCalls):
    """Sends requests to the leaders of partitions."""

    async def describe_producers(
        self, partitions: Iterable[tuple[str, int]]
    ) -> dict[TopicPartition, list[ProducerState]]:
        """Returns producers, their sequences and open transactions. Raises UnknownTopicError for an unknown one."""
        answers = await self._ask_leaders([TopicPartition(*at) for at in partitions], ask_for_producers)
        found: dict[TopicPartition, list[ProducerState]] = {}
        for at, answer in answers.items():
            if answer.error is not ErrorCode.none:
                raise refused(answer.error, str(at))
            found[at] = [producer_state(each) for each in answer.entry.active_producers]
        return found

    async def _ask_leaders(self, partitions: Iterable[TopicPartition], question: LeaderQuestion) -> Answers:
        """Asks each leader once about all of its partitions, until all have replied or the time is up."""
        wanted = list(dict.fromkeys(partitions))
        answers: Answers = {}
        topics = {at.topic for at in wanted}

        async def attempt() -> ClientError | None:
            return await self._ask_leaders_once([at for at in wanted if at not in answers], question, answers)

        self._metadata.want(topics)
        try:
            if wanted:
                await self._until_complete(attempt)
        finally:
            self._metadata.forget(topics)
        return answers

    async def _ask_leaders_once(
        self, wanted: list[TopicPartition], question: LeaderQuestion, answers: Answers
    ) -> ClientError | None:
        """Adds to the answers and returns the reason why some are missing, or None."""
        missing: ClientError | None = None
        try:
            await self._metadata.refresh()
        except PASSING_FAILURES as failure:
            return failure
        by_leader: dict[int, list[TopicPartition]] = {}
        for at in wanted:
            self._check_exists(at)
            leader = self._metadata.leader(*at)
            if leader is None:
                missing = refused(ErrorCode.leader_not_available, str(at))
            else:
                by_leader.setdefault(leader, []).append(at)
        for leader, part in by_leader.items():
            try:
                told = await question(await self._brokers.connection(leader), part)
            except PASSING_FAILURES as failure:
                missing = failure
                continue
            for at, answer in told.items():
                if answer.error.retriable:
                    missing = refused(answer.error, str(at))
                else:
                    answers[at] = answer._replace(coordinator=leader)
        return missing

    def _check_exists(self, at: TopicPartition) -> None:
        view = self._metadata.cached(at.topic)
        error = self._metadata.topic_error(at.topic)
        if view is None and error is not None and not _is_passing(error):
            raise refused(error, f'topic "{at.topic}"')
        if view is not None and at.partition not in view.partitions:
            message = f"it does not exist; the topic has partitions 0 to {len(view.partitions) - 1}"
            raise ClientError(f"{at}: {message}")


def _is_passing(error: ErrorCode) -> bool:
    return error.retriable and error is not ErrorCode.unknown_topic_or_partition


async def ask_for_producers(connection: Connection, partitions: list[TopicPartition]) -> Answers:
    """Sends DescribeProducers."""
    topics = [{"name": name, "partition_indexes": part} for name, part in by_topic(partitions).items()]
    reply = await call(connection, DESCRIBE_PRODUCERS, {"topics": topics}, what="describing producers")
    return {
        TopicPartition(topic.name, int(each.partition_index)): Answer(each.error_code, each)
        for topic in reply.topics
        for each in topic.partitions
    }


def is_open(transaction: OpenTransaction, answer: Answer) -> bool:
    """Returns whether the transaction is still open, according to its partition's producers."""
    states = map(producer_state, answer.entry.active_producers)
    wanted = transaction.producer_id, transaction.first_offset
    return any((each.producer_id, each.first_offset) == wanted for each in states)
