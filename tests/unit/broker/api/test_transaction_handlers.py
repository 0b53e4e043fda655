"""The APIs of transactions through the protocol, in every version, on one broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio

from ottla.broker.endpoints import Node
from ottla.machines.groups.requests import ListGroups
from ottla.machines.transactions.requests import ListTransactions
from ottla.protocol.model.errors import ErrorCode, Refused
from tests.support.handlers_caller import Caller, calling

NONE = ErrorCode.none
API_VERSIONS, INIT, ADD, ADD_OFFSETS, END, OFFSETS = 18, 22, 24, 25, 26, 28
DESCRIBE, LIST = 65, 66


@pytest_asyncio.fixture
async def caller() -> AsyncIterator[Caller]:
    properties = {"transaction_state_log_num_partitions": "2", "offsets_topic_num_partitions": "2"}
    async with calling(**properties) as caller:
        await caller.create_topic("t", 2)
        assert isinstance(await caller.broker.transactions.coordinator_of("any"), Node)
        assert isinstance(await caller.broker.groups.coordinator_of("any"), Node)
        await until_loaded(caller)
        yield caller


async def until_loaded(caller: Caller) -> None:
    while True:
        listed = await caller.broker.transactions.ask_all(ListTransactions())
        groups = await caller.broker.groups.ask_all(ListGroups())
        if not isinstance(listed, Refused) and not isinstance(groups, Refused):
            return
        await asyncio.sleep(0)


async def until(is_reached: Callable[[], bool]) -> None:
    """Waits for a marker, which raises no event."""
    while not is_reached():  # noqa: ASYNC110 - see above
        await asyncio.sleep(0)


async def init(caller: Caller, version: int = 6, **values: Any) -> Any:
    given = {
        "transactional_id": "tx",
        "transaction_timeout": timedelta(seconds=60),
        "producer_id": -1,
        "producer_epoch": -1,
        "enable2_pc": False,
        "keep_prepared_txn": False,
        **values,
    }
    known = 2 + 2 * (version >= 3) + 2 * (version >= 6)
    return await caller.call(INIT, version, **dict(list(given.items())[:known]))


async def add(caller: Caller, producer: tuple[int, int], version: int = 3, partitions: tuple[int, ...] = (0,)) -> Any:
    topics = [{"name": "t", "partitions": partitions}]
    if version >= 4:
        transaction = {"transactional_id": "tx", "producer_id": producer[0], "producer_epoch": producer[1]}
        return await caller.call(ADD, version, transactions=[{**transaction, "verify_only": False, "topics": topics}])
    return await caller.call(
        ADD,
        version,
        v3_and_below_transactional_id="tx",
        v3_and_below_producer_id=producer[0],
        v3_and_below_producer_epoch=producer[1],
        v3_and_below_topics=topics,
    )


def added(reply: Any) -> list[ErrorCode]:
    topics = getattr(reply, "results_by_topic_v3_and_below", None)
    if topics is None:
        topics = reply.results_by_transaction[0].topic_results
    return [each.partition_error_code for topic in topics for each in topic.results_by_partition]


async def end(caller: Caller, producer: tuple[int, int], version: int = 3, *, commit: bool = True) -> Any:
    """Retries while the previous transaction is being completed."""
    while True:
        reply = await caller.call(
            END, version, transactional_id="tx", producer_id=producer[0], producer_epoch=producer[1], committed=commit
        )
        if reply.error_code is not ErrorCode.concurrent_transactions:
            return reply
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("version", range(7))
async def test_a_producer_begins(caller: Caller, version: int) -> None:
    first = await init(caller, version)
    second = await init(caller, version)
    assert (first.error_code, first.producer_epoch) == (NONE, 0)
    assert (second.error_code, second.producer_id, second.producer_epoch) == (NONE, first.producer_id, 1)
    assert (await init(caller, version, transactional_id="")).error_code is ErrorCode.invalid_request
    too_long = await init(caller, version, transaction_timeout=timedelta(days=1))
    assert too_long.error_code is ErrorCode.invalid_transaction_timeout
    if version >= 3:
        fenced = await init(caller, version, producer_id=first.producer_id, producer_epoch=0)
        expected = ErrorCode.producer_fenced if version >= 4 else ErrorCode.invalid_producer_epoch
        assert (fenced.error_code, fenced.producer_id, fenced.producer_epoch) == (expected, -1, -1)


@pytest.mark.parametrize("version", range(6))
async def test_partitions_are_added(caller: Caller, version: int) -> None:
    begun = await init(caller)
    producer = begun.producer_id, begun.producer_epoch
    assert added(await add(caller, producer, version, (0, 1))) == [NONE, NONE]
    fenced = ErrorCode.producer_fenced if version >= 2 else ErrorCode.invalid_producer_epoch
    assert added(await add(caller, (producer[0], 7), version)) == [fenced]
    if version < 4:
        missing = added(await add(caller, producer, version, (0, 9)))
        assert missing == [ErrorCode.operation_not_attempted, ErrorCode.unknown_topic_or_partition]
    described = (await caller.call(DESCRIBE, 0, transactional_ids=("tx",))).transaction_states[0]
    assert (described.error_code, described.transaction_state) == (NONE, "Ongoing")
    assert [(each.topic, each.partitions) for each in described.topics] == [("t", (0, 1))]


@pytest.mark.parametrize("version", range(6))
async def test_a_transaction_ends(caller: Caller, version: int) -> None:
    begun = await init(caller)
    producer = begun.producer_id, begun.producer_epoch
    assert added(await add(caller, producer)) == [NONE]
    ended = await end(caller, producer, version)
    assert ended.error_code is NONE
    if version >= 5:
        assert (ended.producer_id, ended.producer_epoch) == (producer[0], 1)
    else:
        assert (await end(caller, producer, version, commit=False)).error_code is ErrorCode.invalid_txn_state
        fenced = ErrorCode.producer_fenced if version >= 2 else ErrorCode.invalid_producer_epoch
        assert (await end(caller, (producer[0], 5), version)).error_code is fenced
    topic = caller.broker.topics.get("t")
    assert topic is not None
    await until(lambda: topic.partitions[0].log.end_offset > 0)


@pytest.mark.parametrize("version", range(5))
async def test_offsets_are_added(caller: Caller, version: int) -> None:
    begun = await init(caller)
    values = {"transactional_id": "tx", "producer_id": begun.producer_id, "group_id": "g"}
    assert (await caller.call(ADD_OFFSETS, version, **values, producer_epoch=0)).error_code is NONE
    fenced = ErrorCode.producer_fenced if version >= 2 else ErrorCode.invalid_producer_epoch
    assert (await caller.call(ADD_OFFSETS, version, **values, producer_epoch=3)).error_code is fenced


@pytest.mark.parametrize("version", range(6))
async def test_offsets_are_committed(caller: Caller, version: int) -> None:
    begun = await init(caller)
    partitions: list[dict[str, Any]] = []
    for index in (0, 9):
        partitions.append({"partition_index": index, "committed_offset": 3, "committed_metadata": "m"})
        if version >= 2:
            partitions[-1]["committed_leader_epoch"] = 0
    values: dict[str, Any] = {
        "transactional_id": "tx",
        "group_id": "g",
        "producer_id": begun.producer_id,
        "producer_epoch": 0,
        "topics": [{"name": "t", "partitions": partitions}],
    }
    if version >= 3:
        values |= {"generation_id": -1, "member_id": "", "group_instance_id": None}
    unknown = ErrorCode.unknown_topic_or_partition
    if version < 5:
        refused = await caller.call(OFFSETS, version, **values)
        said = ErrorCode.transaction_abortable if version >= 4 else ErrorCode.invalid_txn_state
        assert [each.error_code for each in refused.topics[0].partitions] == [said, unknown]
        group = {"transactional_id": "tx", "producer_id": begun.producer_id, "group_id": "g"}
        assert (await caller.call(ADD_OFFSETS, 3, **group, producer_epoch=0)).error_code is NONE
    committed = await caller.call(OFFSETS, version, **values)
    assert [each.error_code for each in committed.topics[0].partitions] == [NONE, unknown]
    fenced = await caller.call(OFFSETS, version, **{**values, "producer_epoch": -1})
    assert fenced.topics[0].partitions[0].error_code is ErrorCode.invalid_producer_epoch
    assert list(caller.broker.groups.committed_offsets()) == []
    assert (await end(caller, (begun.producer_id, 0), 5 if version >= 5 else 3)).error_code is NONE
    await until(lambda: bool(list(caller.broker.groups.committed_offsets())))
    (found,) = caller.broker.groups.committed_offsets()
    assert (found.group, found.topic, found.partition, found.offset) == ("g", "t", 0, 3)


@pytest.mark.parametrize("version", range(3))
async def test_transactions_are_listed(caller: Caller, version: int) -> None:
    for name in ("b", "a"):
        assert (await init(caller, transactional_id=name)).error_code is NONE
    filters: dict[str, Any] = {"state_filters": ("Empty", "Nonsense"), "producer_id_filters": ()}
    if version >= 1:
        filters["duration_filter"] = -1
    if version >= 2:
        filters["transactional_id_pattern"] = "[a]"
    listed = await caller.call(LIST, version, **filters)
    expected = {"a"} if version >= 2 else {"a", "b"}
    assert {each.transactional_id for each in listed.transaction_states} == expected
    assert (listed.error_code, listed.unknown_state_filters) == (NONE, ("Nonsense",))
    if version >= 2:
        invalid = await caller.call(LIST, version, **{**filters, "transactional_id_pattern": "("})
        assert invalid.error_code is ErrorCode.invalid_regular_expression


async def test_one_that_is_not_there(caller: Caller) -> None:
    (described,) = (await caller.call(DESCRIBE, 0, transactional_ids=("nobody",))).transaction_states
    assert (described.error_code, described.producer_id) == (ErrorCode.transactional_id_not_found, -1)


@pytest.mark.parametrize("version", [3, 4])
async def test_clients_are_told_of_version_2(caller: Caller, version: int) -> None:
    told = await caller.call(API_VERSIONS, version, client_software_name="test", client_software_version="1")
    (level,) = told.finalized_features
    assert (level.name, level.min_version_level, level.max_version_level) == ("transaction.version", 2, 2)
    assert told.finalized_features_epoch >= 0
    assert [each.max_version for each in told.supported_features] == ([2] if version >= 4 else [])
