"""kcat, a command line on librdkafka. It has no admin client: its topics are created on first use."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence

from tests.conformance.clients.interface import REQUEST_BYTES_MAX, TIMEOUT_S, Ability, Client, Headers, Record

MISSING = None if shutil.which("kcat") else "kcat is not installed (make test installs it where it may)"
KEY_END = "\x1f"
RECORD_END = "\x1e"
# Lengths first, so that keys and values may hold any bytes. A length of -1 is null.
FORMAT = "%p %o %T %K %S %h\\n%k%s\\n"


MOVED = ("Not leader for partition", "Leader not available", "high watermark is not caught up")


class KcatClient(Client):
    name = "kcat"
    abilities = frozenset({Ability.IDEMPOTENCE, Ability.HEADERS})

    def create_topic(self, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        assert partitions == 1
        assert not configs, "kcat creates topics by writing to them"

    def topics(self) -> dict[str, int]:
        listed = json.loads(self._run("-L", "-J"))
        return {topic["topic"]: len(topic["partitions"]) for topic in listed["topics"]}

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
        """Runs one kcat for each run of records with the same headers, since headers are a command-line argument."""
        for (partition, headers), run in itertools.groupby(records, lambda r: (r.partition, r.headers)):
            options = ["-P", "-t", topic, "-p", str(partition), "-Z", "-K", KEY_END, "-D", RECORD_END, "-z", codec]
            for name, value in headers:
                options += ["-H", name if value is None else f"{name}={value.decode()}"]
            settings = {
                "enable.idempotence": str(idempotent).lower(),
                "acks": str(acks),
                "message.max.bytes": str(REQUEST_BYTES_MAX),
            }
            for name, text in settings.items():
                options += ["-X", f"{name}={text}"]
            lines = [(r.key or b"") + KEY_END.encode() + (r.value or b"") for r in run]
            self._run(*options, lines=[line + RECORD_END.encode() for line in lines], pause_ms=pause_ms)
        return []

    def read(self, topic: str, count: int, *, partition: int = 0, offset: int = 0) -> list[Record]:
        output = self._run(
            "-C", "-t", topic, "-p", str(partition), "-o", str(offset), "-c", str(count), "-e", "-f", FORMAT
        )
        return list(_parse(output))

    def offset_for_time(self, topic: str, timestamp_ms: int, *, partition: int = 0) -> int | None:
        output = self._ask_again("-Q", "-t", f"{topic}:{partition}:{timestamp_ms}").decode()
        found = re.search(r"offset (-?\d+)", output)
        assert found is not None, output
        return int(found.group(1)) if int(found.group(1)) >= 0 else None

    def _ask_again(self, *options: str) -> bytes:
        """Restarts kcat if a leader has just moved, since it asks only once."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                return self._run(*options)
            except RuntimeError as refused:
                if not any(text in str(refused) for text in MOVED) or time.monotonic() > deadline:
                    raise
            time.sleep(0.05)

    def _run(self, *options: str, lines: Sequence[bytes] = (), pause_ms: float = 0) -> bytes:
        command = ["kcat", "-b", self.bootstrap, "-q", *options]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
            try:
                if pause_ms:
                    _feed(process, lines, pause_ms)
                    lines = ()
                output, errors = process.communicate(b"".join(lines), timeout=TIMEOUT_S * 2)
            except BaseException:
                process.kill()
                raise
        if process.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}: {errors.decode()}")
        return output


def _feed(process: subprocess.Popen[bytes], lines: Sequence[bytes], pause_ms: float) -> None:
    assert process.stdin is not None
    for line in lines:
        process.stdin.write(line)
        process.stdin.flush()
        time.sleep(pause_ms / 1000)


def _parse(output: bytes) -> list[Record]:
    found = []
    at = 0
    while at < len(output):
        end = output.index(b"\n", at)
        partition, offset, timestamp_ms, key_length, value_length, headers = output[at:end].split(b" ", 5)
        key, at = _bytes(output, end + 1, int(key_length))
        value, at = _bytes(output, at, int(value_length))
        at += 1
        found.append(Record(value, key, _headers(headers), int(timestamp_ms), int(partition), int(offset)))
    return found


def _bytes(output: bytes, at: int, length: int) -> tuple[bytes | None, int]:
    return (None, at) if length < 0 else (output[at : at + length], at + length)


def _headers(text: bytes) -> Headers:
    pairs = [pair.partition(b"=") for pair in text.split(b",") if pair]
    return tuple((name.decode(), None if value == b"NULL" else value) for name, _, value in pairs)
