"""The admin client for transactions, with concurrent changes: coordinators move, transactions end."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ottla.client import Admin
from ottla.client.admin.transaction_descriptions import OpenTransaction
from ottla.client.errors import BrokerRefusedError, UnknownTransactionalIdError, UnsupportedByBrokerError
from ottla.net.apis import build
from ottla.protocol.model.errors import ErrorCode
from ottla.protocol.wire.schema import decode, encode, request_type, response_type
from tests.support.client_scripted_broker import TOPIC, ScriptedBroker

FIND, INIT, MARKERS, PRODUCERS, DESCRIBE, LIST = 10, 22, 27, 61, 65, 66
METADATA, API_VERSIONS = 3, 18
VERSIONS = {
    METADATA: (10, 13),
    FIND: (4, 6),
    API_VERSIONS: (0, 4),
    INIT: (2, 5),
    MARKERS: (1, 2),
    PRODUCERS: (0, 0),
    DESCRIBE: (0, 0),
    LIST: (0, 1),
}
MOVES = (ErrorCode.not_coordinator, ErrorCode.coordinator_load_in_progress, ErrorCode.coordinator_not_available)
PRODUCER, OFFSET = 71, 5


@dataclass
class Scripted(ScriptedBroker):
    """Has one transactional id, `tx`, and one partition in which its producer may have an open transaction."""

    opened: deque[bool] = field(default_factory=lambda: deque([True]))
    """Whether the partition has it open, for each request; the last value stays."""
    partitions: tuple[int, ...] = ()
    """The coordinator's partitions of the topic."""
    state: str = "Ongoing"
    failures: dict[int, deque[ErrorCode | None]] = field(default_factory=dict)
    """Outcomes of the next requests of an API; None closes the connection."""
    versions: dict[int, tuple[int, int]] = field(default_factory=lambda: dict(VERSIONS))
    asked: Counter[int] = field(default_factory=Counter)
    markers: list[Any] = field(default_factory=list)
    coordinator_epoch: int = -1

    def _answer(self, api_key: int, version: int, body: memoryview) -> bytes | None:
        self.asked[api_key] += 1
        request, _ = decode(request_type(api_key, version), body)
        script = self.failures.get(api_key)
        error = script.popleft() if script else ErrorCode.none
        replies = {
            METADATA: lambda *_: self._metadata(),
            API_VERSIONS: self._api_versions,
            FIND: self._found,
            INIT: self._begun,
            MARKERS: self._marked,
            PRODUCERS: self._producers,
            DESCRIBE: self._described,
            LIST: self._listed,
        }
        if error is None:
            replies[api_key](request, ErrorCode.none)  # it is carried out; only the reply is lost
            return None
        values = {"throttle_time": timedelta(), **replies[api_key](request, error)}
        return encode(build(response_type(api_key, version), values))

    def _api_versions(self, request: Any, error: ErrorCode) -> dict[str, Any]:
        keys = [{"api_key": key, "min_version": low, "max_version": high} for key, (low, high) in self.versions.items()]
        return {"error_code": error, "api_keys": keys}

    def _found(self, request: Any, error: ErrorCode) -> dict[str, Any]:
        assert request.key_type == 1, "not a group's"
        node = {"node_id": 1, "host": "127.0.0.1", "port": self.port, "error_code": error, "error_message": None}
        return {"coordinators": [{"key": key, **node} for key in request.coordinator_keys]}

    def _begun(self, request: Any, error: ErrorCode) -> dict[str, Any]:
        return {"error_code": error, "producer_id": PRODUCER, "producer_epoch": 9}

    def _marked(self, request: Any, error: ErrorCode) -> dict[str, Any]:
        self.markers += request.markers
        (marker,) = request.markers
        (topic,) = marker.topics
        partitions = [{"partition_index": index, "error_code": error} for index in topic.partition_indexes]
        return {"markers": [{"producer_id": PRODUCER, "topics": [{"name": topic.name, "partitions": partitions}]}]}

    def _producers(self, request: Any, error: ErrorCode) -> dict[str, Any]:
        is_open = self.opened.popleft() if len(self.opened) > 1 else self.opened[0]
        state = {
            "producer_id": PRODUCER,
            "producer_epoch": 2,
            "last_sequence": 0,
            "last_timestamp": 1000,
            "coordinator_epoch": self.coordinator_epoch,
            "current_txn_start_offset": OFFSET if is_open else -1,
        }
        partition = {"partition_index": 0, "error_code": error, "error_message": None, "active_producers": [state]}
        return {"topics": [{"name": TOPIC, "partitions": [partition]}]}

    def _described(self, request: Any, error: ErrorCode) -> dict[str, Any]:
        states = [
            {
                "error_code": error if name == "tx" else ErrorCode.transactional_id_not_found,
                "transactional_id": name,
                "transaction_state": self.state,
                "transaction_timeout": timedelta(seconds=60),
                "transaction_start_time": datetime.fromtimestamp(1_700_000_000, UTC),
                "producer_id": PRODUCER,
                "producer_epoch": 2,
                "topics": [{"topic": TOPIC, "partitions": self.partitions}] if self.partitions else [],
            }
            for name in request.transactional_ids
        ]
        return {"transaction_states": states}

    def _listed(self, request: Any, error: ErrorCode) -> dict[str, Any]:
        states = [
            {"transactional_id": "tx", "producer_id": PRODUCER, "transaction_state": self.state},
            {"transactional_id": "idle", "producer_id": 99, "transaction_state": "Empty"},
        ]
        wanted = request.producer_id_filters
        found = [each for each in states if not wanted or each["producer_id"] in wanted]
        return {"error_code": error, "unknown_state_filters": [], "transaction_states": [] if error else found}


def run(broker: Scripted, work: Any, **settings: Any) -> Any:
    async def limited() -> Any:
        async with asyncio.timeout(30), broker, Admin(broker.bootstrap, **settings) as admin:
            coroutine: Coroutine[Any, Any, Any] = work(admin)
            return await coroutine

    return asyncio.run(limited())


def failing(api_key: int, *errors: ErrorCode | None, **values: Any) -> Scripted:
    return Scripted(failures={api_key: deque(errors)}, **values)


@pytest.mark.parametrize("api_key", [FIND, DESCRIBE])
def test_a_coordinator_that_moves_is_asked_again(api_key: int) -> None:
    broker = failing(api_key, *MOVES, partitions=(0,))
    found = run(broker, lambda admin: admin.describe_transaction("tx"))
    assert (found.state, found.producer_epoch, found.timeout_ms) == ("Ongoing", 2, 60_000)
    assert found.started_ms == 1_700_000_000_000
    assert found.partitions == [(TOPIC, 0)]
    assert broker.asked[api_key] == len(MOVES) + 1


def test_a_listing_while_coordinators_move() -> None:
    broker = failing(LIST, *MOVES, None)
    found = run(broker, lambda admin: admin.list_transactions())
    assert [(each.transactional_id, each.state) for each in found] == [("idle", "Empty"), ("tx", "Ongoing")]


def test_what_has_no_transaction_is_not_open_for_long() -> None:
    """Kafka lists it."""
    found = run(Scripted(), lambda admin: admin.list_transactions(open_for_ms=1000))
    assert [each.transactional_id for each in found] == ["tx"]


def test_a_broker_that_knows_no_durations() -> None:
    broker = Scripted(versions={**VERSIONS, LIST: (0, 0)})
    with pytest.raises(UnsupportedByBrokerError, match="cannot list transactions by duration"):
        run(broker, lambda admin: admin.list_transactions(open_for_ms=1000))


def test_one_that_is_not_there() -> None:
    with pytest.raises(UnknownTransactionalIdError, match='transactional id "other": there is no such'):
        run(Scripted(), lambda admin: admin.describe_transaction("other"))


def test_a_coordinator_that_stays_away() -> None:
    broker = failing(FIND, *[ErrorCode.coordinator_not_available] * 1000)
    with pytest.raises(BrokerRefusedError, match='transactional id "tx": its coordinator is moving; try again'):
        run(broker, lambda admin: admin.describe_transaction("tx"), request_timeout_ms=300)


# -- which transactions hang -----------------------------------------------------------------------------------------


def hanging(broker: Scripted) -> list[OpenTransaction]:
    found, unknown = run(broker, lambda admin: admin.find_hanging_transactions())
    assert not unknown
    return list(found)


def test_one_that_no_coordinator_knows_hangs() -> None:
    (found,) = hanging(Scripted())
    assert (found.at, found.producer_id, found.producer_epoch, found.first_offset) == ((TOPIC, 0), PRODUCER, 2, OFFSET)


def test_one_that_a_coordinator_knows_does_not_hang() -> None:
    assert hanging(Scripted(partitions=(0,))) == []


def test_one_that_is_in_other_partitions_hangs_here() -> None:
    assert len(hanging(Scripted(partitions=(3,)))) == 1


def test_one_that_ends_meanwhile_does_not_hang() -> None:
    """The coordinator had no record of it because it was complete."""
    assert hanging(Scripted(opened=deque([True, False]))) == []


def test_nothing_open_asks_no_coordinator() -> None:
    broker = Scripted(opened=deque([False]))
    assert hanging(broker) == []
    assert not broker.asked[LIST]


# -- aborting them ---------------------------------------------------------------------------------------------------


def test_fencing_waits_until_the_abort_is_complete() -> None:
    broker = failing(INIT, ErrorCode.concurrent_transactions, *MOVES, ErrorCode.concurrent_transactions, None)
    assert run(broker, lambda admin: admin.fence_producer("tx")) == (PRODUCER, 9)
    assert broker.asked[INIT] == 7


def test_fencing_that_is_refused() -> None:
    broker = failing(INIT, ErrorCode.invalid_transaction_timeout)
    with pytest.raises(BrokerRefusedError, match=r"transaction\.max\.timeout\.ms"):
        run(broker, lambda admin: admin.fence_producer("tx", timeout_ms=10**9))


OPEN = OpenTransaction(TOPIC, 0, PRODUCER, 2, OFFSET, 1000, 4)


@pytest.mark.parametrize(("known", "written"), [(4, 4), (-1, 0)])
def test_a_marker_has_the_epoch_of_the_last_coordinator(known: int, written: int) -> None:
    broker = Scripted()
    hanging_one = OpenTransaction(TOPIC, 0, PRODUCER, 2, OFFSET, 1000, known)
    run(broker, lambda admin: admin.abort_in_partition(hanging_one))
    (marker,) = broker.markers
    assert (marker.producer_id, marker.producer_epoch, marker.coordinator_epoch) == (PRODUCER, 2, written)
    assert marker.transaction_result is False


def test_a_leader_that_moves_is_asked_again() -> None:
    broker = failing(MARKERS, ErrorCode.not_leader_or_follower)
    run(broker, lambda admin: admin.abort_in_partition(OPEN))
    assert broker.asked[MARKERS] == 2


def test_a_marker_whose_answer_was_lost_is_not_written_again() -> None:
    """It would abort the producer's next transaction there."""
    broker = failing(MARKERS, None, opened=deque([True, False]))
    run(broker, lambda admin: admin.abort_in_partition(OPEN))
    assert broker.asked[MARKERS] == 1


def test_a_marker_that_is_refused() -> None:
    broker = failing(MARKERS, ErrorCode.transaction_coordinator_fenced)
    with pytest.raises(BrokerRefusedError, match="t-0: it was fenced by a newer transaction coordinator"):
        run(broker, lambda admin: admin.abort_in_partition(OPEN))
