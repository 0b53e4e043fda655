"""A fake broker that holds groups in memory and fails where a script says so. For tests of the admin client."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from ottla.net.apis import build
from ottla.protocol.model.errors import ErrorCode
from ottla.protocol.wire.schema import decode, encode, request_type, response_type
from tests.support.client_scripted_broker import ScriptedBroker

OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR, DESCRIBE_GROUPS, LIST_GROUPS = 8, 9, 10, 15, 16
DELETE_GROUPS, CONSUMER_GROUP_DESCRIBE = 42, 69
METADATA, API_VERSIONS = 3, 18
VERSIONS = {3: (10, 13), 8: (8, 9), 9: (8, 9), 10: (4, 6), 15: (5, 6), 16: (4, 5), 18: (0, 4), 42: (2, 2), 69: (0, 1)}

Failure = ErrorCode | None
"""None closes the connection instead of replying."""


@dataclass
class ScriptedCoordinator(ScriptedBroker):
    groups: set[str] = field(default_factory=set)
    """Classic groups without members."""
    failures: dict[int, deque[Failure]] = field(default_factory=dict)
    """Outcomes of the next requests of an API, before ordinary replies resume."""
    does_it_anyway: bool = False
    """A deletion is carried out even if the connection is closed before its reply."""
    versions: dict[int, tuple[int, int]] = field(default_factory=lambda: dict(VERSIONS))
    asked: Counter[int] = field(default_factory=Counter)
    commit_error: ErrorCode = ErrorCode.none

    def _answer(self, api_key: int, version: int, body: memoryview) -> bytes | None:
        self.asked[api_key] += 1
        request, _ = decode(request_type(api_key, version), body)
        script = self.failures.get(api_key)
        failure: Failure = script.popleft() if script else ErrorCode.none
        if failure is None:
            if self.does_it_anyway:
                self._reply(api_key, request, ErrorCode.none)
            return None
        return encode(build(response_type(api_key, version), self._reply(api_key, request, failure)))

    def _reply(self, api_key: int, request: Any, error: ErrorCode) -> dict[str, Any]:
        if api_key == METADATA:
            return {**self._metadata(), "topics": []}
        if api_key == API_VERSIONS:
            keys = [{"api_key": key, "min_version": low, "max_version": high} for key, (low, high) in self._spoken()]
            return {"error_code": ErrorCode.none, "api_keys": keys, "throttle_time": timedelta()}
        answers = {
            FIND_COORDINATOR: self._coordinators,
            LIST_GROUPS: self._list,
            DESCRIBE_GROUPS: self._describe,
            CONSUMER_GROUP_DESCRIBE: self._describe_consumer,
            DELETE_GROUPS: self._delete,
            OFFSET_FETCH: self._offsets,
            OFFSET_COMMIT: self._commit,
        }
        return {"throttle_time": timedelta(), **answers[api_key](request, error)}

    def _spoken(self) -> list[tuple[int, tuple[int, int]]]:
        return list(self.versions.items())

    def _coordinators(self, request: Any, error: ErrorCode) -> dict[str, Any]:
        node = {"node_id": 1, "host": "127.0.0.1", "port": self.port, "error_code": error, "error_message": None}
        return {"coordinators": [{"key": key, **node} for key in request.coordinator_keys]}

    def _list(self, request: Any, error: ErrorCode) -> dict[str, Any]:
        entries = [
            {"group_id": name, "protocol_type": "consumer", "group_state": "Empty", "group_type": "Classic"}
            for name in sorted(self.groups)
        ]
        return {"error_code": error, "groups": [] if error else entries}

    def _describe(self, request: Any, error: ErrorCode) -> dict[str, Any]:
        return {"groups": [self._described(name, error) for name in request.groups]}

    def _described(self, name: str, error: ErrorCode) -> dict[str, Any]:
        is_there = name in self.groups and not error
        return {
            "error_code": error,
            "error_message": None,
            "group_id": name,
            "group_state": "Empty" if is_there else "Dead",
            "protocol_type": "consumer" if is_there else "",
            "protocol_data": "",
            "members": [],
            "authorized_operations": 0,
        }

    def _describe_consumer(self, request: Any, error: ErrorCode) -> dict[str, Any]:
        entry: dict[str, Any] = {
            "error_code": error or ErrorCode.group_id_not_found,
            "error_message": None,
            "group_state": "",
            "group_epoch": 0,
            "assignment_epoch": 0,
            "assignor_name": "",
            "members": [],
            "authorized_operations": 0,
        }
        return {"groups": [{"group_id": name, **entry} for name in request.group_ids]}

    def _delete(self, request: Any, error: ErrorCode) -> dict[str, Any]:
        results = []
        for name in request.groups_names:
            outcome = error or (ErrorCode.none if name in self.groups else ErrorCode.group_id_not_found)
            if not outcome:
                self.groups.discard(name)
            results.append({"group_id": name, "error_code": outcome})
        return {"results": results}

    def _offsets(self, request: Any, error: ErrorCode) -> dict[str, Any]:
        return {"groups": [{"group_id": each.group_id, "topics": [], "error_code": error} for each in request.groups]}

    def _commit(self, request: Any, error: ErrorCode) -> dict[str, Any]:
        topics = [
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": each.partition_index, "error_code": error or self.commit_error}
                    for each in topic.partitions
                ],
            }
            for topic in request.topics
        ]
        return {"topics": topics}
