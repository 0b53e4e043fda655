"""The Java client, through `java/Driver.java` in one JVM for all tests."""

from __future__ import annotations

import base64
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from ottla.protocol.model.errors import ErrorCode
from tests.conformance.clients.interface import REQUEST_BYTES_MAX, Ability, Client, Record, RefusedByBroker

CACHE = Path(__file__).resolve().parents[3] / ".cache" / "java"


def why_missing() -> str | None:
    if shutil.which("java") is None:
        return "java is not installed"
    if not (CACHE / "classes" / "Driver.class").exists():
        return "the Java client is not there (make test fetches it where it can)"
    return None


class JavaClient(Client):
    name = "java"
    abilities = frozenset(Ability)

    def __init__(self, bootstrap: str, replicas: int = 1) -> None:
        super().__init__(bootstrap, replicas)
        classes = f"{CACHE}/classes:{CACHE}/libraries/*"
        flags = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"]
        self._jvm = subprocess.Popen(
            ["java", *flags, "-cp", classes, "Driver", bootstrap, str(replicas)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        self._jvm.communicate(timeout=20)

    def ask(self, *fields: object, body: Sequence[str] = ()) -> list[list[str]]:
        """Sends one command and returns the lines of its reply."""
        assert self._jvm.stdin is not None
        assert self._jvm.stdout is not None
        command = "\t".join(str(field) for field in fields)
        self._jvm.stdin.write("\n".join([command, *body]) + "\n")
        self._jvm.stdin.flush()
        reply: list[list[str]] = []
        while line := self._jvm.stdout.readline():
            fields_read = line.rstrip("\n").split("\t")
            if fields_read[0] == "ok":
                return reply
            if fields_read[0] == "error":
                text = base64.b64decode(fields_read[2]).decode()
                code = int(fields_read[1])
                raise RefusedByBroker(code, text) if code > 0 else RuntimeError(text)
            reply.append(fields_read)
        raise RuntimeError(f"the JVM ended with {self._jvm.wait(5)} on {command[:200]}")

    def create_topic(self, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        self.ask("create", topic, partitions, _pairs(configs or {}))

    def delete_topic(self, topic: str) -> None:
        self.ask("delete", topic)

    def create_partitions(self, topic: str, total: int) -> None:
        self.ask("partitions", topic, total)

    def topics(self) -> dict[str, int]:
        while True:
            try:
                return {name: int(partitions) for name, partitions in self.ask("topics")}
            except RefusedByBroker as refused:
                # The names are listed first and then described: a topic deleted in between no longer exists.
                if refused.error is not ErrorCode.unknown_topic_or_partition:
                    raise

    def configs(self, topic: str) -> dict[str, str | None]:
        return self._configs("TOPIC", topic)

    def broker_configs(self, broker_id: int) -> dict[str, str | None]:
        return self._configs("BROKER", str(broker_id))

    def _configs(self, kind: str, name: str) -> dict[str, str | None]:
        found = {key: _decode(value) for key, value, _source in self.ask("configs", kind, name)}
        return {key: None if value is None else value.decode() for key, value in found.items()}

    def alter_config(self, topic: str, name: str, value: str) -> None:
        self.ask("alter", topic, name, value)

    def delete_records(self, topic: str, before: int, *, partition: int = 0) -> int:
        return int(self.ask("delete-records", topic, partition, before)[0][0])

    def write(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        codec: str = "none",
        idempotent: bool = True,
        acks: int = -1,
        pause_ms: float = 0,
    ) -> list[int]:
        settings = {
            "enable.idempotence": str(idempotent).lower(),
            "acks": "all" if acks == -1 else str(acks),
            "linger.ms": "5",
            "max.request.size": str(REQUEST_BYTES_MAX),
        }
        body = [
            "\t".join(
                [
                    str(record.partition),
                    "-" if record.timestamp_ms is None else str(record.timestamp_ms),
                    _encode(record.key),
                    _encode(record.value),
                    *(_encode(part) for name, value in record.headers for part in (name.encode(), value)),
                ]
            )
            for record in records
        ]
        written = self.ask("write", topic, codec, _pairs(settings), len(records), int(pause_ms), body=body)
        return [int(offset) for _partition, offset, _timestamp in written]

    def read(self, topic: str, count: int, *, partition: int = 0, offset: int = 0) -> list[Record]:
        return [_record(fields, partition) for fields in self.ask("read", topic, partition, offset, count)]

    def offset_for_time(self, topic: str, timestamp_ms: int, *, partition: int = 0) -> int | None:
        offset = int(self.ask("offset-for-time", topic, partition, timestamp_ms)[0][0])
        return offset if offset >= 0 else None

    def ends(self, topic: str, *, partition: int = 0) -> tuple[int, int]:
        (first,), (end,), _latest_time = self.ask("offsets", topic, partition)
        return int(first), int(end)


def _record(fields: list[str], partition: int) -> Record:
    offset, timestamp_ms, key, value, *headers = fields
    names = [(_decode(name) or b"").decode() for name in headers[::2]]
    values = [_decode(text) for text in headers[1::2]]
    return Record(
        value=_decode(value),
        key=_decode(key),
        headers=tuple(zip(names, values, strict=True)),
        timestamp_ms=int(timestamp_ms),
        partition=partition,
        offset=int(offset),
    )


def _pairs(settings: Mapping[str, str]) -> str:
    return ";".join(f"{name}={value}" for name, value in settings.items())


def _encode(data: bytes | None) -> str:
    return "-" if data is None else base64.b64encode(data).decode()


def _decode(text: str) -> bytes | None:
    return None if text == "-" else base64.b64decode(text)
