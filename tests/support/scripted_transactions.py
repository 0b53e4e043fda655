"""A fake broker that coordinates one producer's transactions and fails where a script says so."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple

from ottla.net.apis import build
from ottla.protocol.model.errors import ErrorCode
from ottla.protocol.records.batch import read_header
from ottla.protocol.wire.produce import parse_produce_request
from ottla.protocol.wire.schema import decode, encode, request_type, response_type
from tests.support.client_scripted_broker import PRODUCER_ID, ScriptedBroker

PRODUCE, METADATA, FIND_COORDINATOR, API_VERSIONS = 0, 3, 10, 18
INIT, ADD_PARTITIONS, ADD_OFFSETS, END, COMMIT_OFFSETS = 22, 24, 25, 26, 28
VERSIONS = {
    PRODUCE: (9, 13),
    METADATA: (10, 13),
    FIND_COORDINATOR: (4, 6),
    API_VERSIONS: (0, 4),
    INIT: (2, 5),
    ADD_PARTITIONS: (3, 5),
    ADD_OFFSETS: (3, 4),
    END: (3, 5),
    COMMIT_OFFSETS: (3, 5),
}
OLDER = {**VERSIONS, PRODUCE: (9, 11), END: (3, 3), COMMIT_OFFSETS: (3, 3), INIT: (2, 4)}
"""API versions of a broker before transaction version 2."""

Failure = ErrorCode | None
"""None closes the connection instead of replying."""


class Asked(NamedTuple):
    api_key: int
    version: int
    epoch: int
    """The producer's epoch; -1 if the request names none."""
    detail: Any = None


@dataclass
class ScriptedTransactions(ScriptedBroker):
    """`asked` has every request except those for metadata and coordinators; `looked_up` counts the latter."""

    transaction_version: int = 2
    failures: dict[int, deque[Failure]] = field(default_factory=dict)
    """Outcomes of the next requests of an API, before ordinary replies resume."""
    always: dict[int, Failure] = field(default_factory=dict)
    does_it_anyway: bool = False
    """A request is carried out even if the connection is closed before its reply."""
    asked: list[Asked] = field(default_factory=list)
    looked_up: int = 0
    epoch: int = -1
    ends: list[bool] = field(default_factory=list)
    """The results of the transactions, without retries of the same EndTxn."""
    committed_offsets: list[Any] = field(default_factory=list)

    def fail(self, api_key: int, *failures: Failure) -> None:
        self.failures[api_key] = deque(failures)

    @property
    def asked_keys(self) -> list[int]:
        return [each.api_key for each in self.asked]

    def _answer(self, api_key: int, version: int, body: memoryview) -> bytes | None:
        if api_key == PRODUCE:
            request = parse_produce_request(body, version)
            ((_, ((_, records),)),) = request.topics
            assert records is not None
            header = read_header(records)
            assert header.is_transactional
            self.asked.append(Asked(PRODUCE, version, header.producer_epoch, request.transactional_id))
            return self._produce(version, body)
        asked, _ = decode(request_type(api_key, version), body)
        if api_key == FIND_COORDINATOR:
            self.looked_up += 1
        elif api_key not in (METADATA, API_VERSIONS):
            self.asked.append(_asked(api_key, version, asked))
        script = self.failures.get(api_key)
        failure: Failure = script.popleft() if script else self.always.get(api_key, ErrorCode.none)
        if failure is None:
            if self.does_it_anyway:
                self._reply(api_key, version, asked, ErrorCode.none)
            return None
        return encode(build(response_type(api_key, version), self._reply(api_key, version, asked, failure)))

    def _reply(self, api_key: int, version: int, asked: Any, error: ErrorCode) -> Mapping[str, Any]:
        if api_key == METADATA:
            return self._metadata()
        if api_key == API_VERSIONS:
            return self._api_versions()
        answers = {
            FIND_COORDINATOR: self._coordinators,
            INIT: self._init,
            ADD_PARTITIONS: self._add_partitions,
            ADD_OFFSETS: lambda asked, error: {"error_code": error},
            END: self._end,
            COMMIT_OFFSETS: self._commit_offsets,
        }
        return {"throttle_time": timedelta(), **answers[api_key](asked, error)}

    def _api_versions(self) -> dict[str, Any]:
        versions = VERSIONS if self.transaction_version >= 2 else OLDER
        keys = [{"api_key": key, "min_version": low, "max_version": high} for key, (low, high) in versions.items()]
        level = {"name": "transaction.version", "max_version_level": 2, "min_version_level": 2}
        features = [level] if self.transaction_version >= 2 else []
        answer = {"error_code": ErrorCode.none, "api_keys": keys, "throttle_time": timedelta()}
        return {**answer, "finalized_features": features, "finalized_features_epoch": 1}

    def _coordinators(self, asked: Any, error: ErrorCode) -> dict[str, Any]:
        node = {"node_id": 1, "host": "127.0.0.1", "port": self.port, "error_code": error, "error_message": None}
        return {"coordinators": [{"key": key, **node} for key in asked.coordinator_keys]}

    def _init(self, asked: Any, error: ErrorCode) -> dict[str, Any]:
        if not error:
            self.epoch += 1
        return {"error_code": error, "producer_id": PRODUCER_ID, "producer_epoch": self.epoch}

    def _add_partitions(self, asked: Any, error: ErrorCode) -> dict[str, Any]:
        results = [
            {
                "name": topic.name,
                "results_by_partition": [
                    {"partition_index": index, "partition_error_code": error} for index in topic.partitions
                ],
            }
            for topic in asked.v3_and_below_topics
        ]
        return {"results_by_topic_v3_and_below": results}

    def _end(self, asked: Any, error: ErrorCode) -> dict[str, Any]:
        if not error:
            is_repetition = self.transaction_version >= 2 and asked.producer_epoch == self.epoch - 1
            if not is_repetition:
                self.ends.append(asked.committed)
                self.epoch += self.transaction_version >= 2
        return {"error_code": error, "producer_id": PRODUCER_ID, "producer_epoch": self.epoch}

    def _commit_offsets(self, asked: Any, error: ErrorCode) -> dict[str, Any]:
        if not error:
            self.committed_offsets.append(asked)
        topics = [
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": each.partition_index, "error_code": error} for each in topic.partitions
                ],
            }
            for topic in asked.topics
        ]
        return {"topics": topics}


def _asked(api_key: int, version: int, asked: Any) -> Asked:
    name = "v3_and_below_producer_epoch" if api_key == ADD_PARTITIONS else "producer_epoch"
    detail = asked.committed if api_key == END else None
    return Asked(api_key, version, int(getattr(asked, name)), detail)
