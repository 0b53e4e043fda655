"""Groups through the Java client."""

from __future__ import annotations

import base64
from collections.abc import Mapping

from tests.conformance.clients.group_interface import CLASSIC, CONSUMER, Described, GroupUser, Offsets
from tests.conformance.clients.java_client import JavaClient


class JavaGroupUser(GroupUser):
    name = "java"
    protocols = (CLASSIC, CONSUMER)

    def __init__(self, bootstrap: str, jvm: JavaClient) -> None:
        super().__init__(bootstrap)
        self._jvm = jvm

    def consume(self, group: str, topic: str, count: int, protocol: str = CLASSIC) -> list[bytes]:
        lines = self._jvm.ask("consume", group, topic, count, protocol)
        described = _described([line for line in lines if line[0] != "record"])
        assert described.state == "Stable"
        ((client_id, host, assigned),) = described.members
        assert (client_id, host) == ("ottla-conformance-java", "/127.0.0.1")
        assert {name for name, _ in assigned} == {topic}
        return [base64.b64decode(line[3]) for line in lines if line[0] == "record"]

    def groups(self) -> dict[str, str | None]:
        return {name: state for name, state, _type in self._jvm.ask("groups")}

    def describe(self, group: str) -> Described:
        return _described(self._jvm.ask("describe-group", group))

    def offsets(self, group: str) -> Offsets:
        lines = self._jvm.ask("group-offsets", group)
        return {(topic, int(partition)): int(offset) for topic, partition, offset in lines}

    def alter_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        fields = [field for place, offset in offsets.items() for field in (*place, offset)]
        self._jvm.ask("alter-offsets", group, *fields)

    def delete_offsets(self, group: str, topic: str, partition: int) -> None:
        self._jvm.ask("delete-offsets", group, topic, partition, 0)

    def delete_group(self, group: str) -> None:
        self._jvm.ask("delete-group", group)


def _described(lines: list[list[str]]) -> Described:
    (state, _coordinator, operations), *members = lines
    assert {"READ", "DELETE", "DESCRIBE"} <= set(operations.strip("[]").split(", "))
    return Described(state, tuple((client_id, host, _assigned(text)) for client_id, host, text in members))


def _assigned(text: str) -> frozenset[tuple[str, int]]:
    places = (place.rpartition("-") for place in text.split(";") if place)
    return frozenset((topic, int(index)) for topic, _, index in places)
