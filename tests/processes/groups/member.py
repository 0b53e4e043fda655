"""A group member in its own process. It processes, then commits; on SIGTERM it leaves in order.

python -m tests.processes.groups.member CLIENT PROTOCOL BOOTSTRAP GROUP TOPIC HISTORY SESSION_MS
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from tests.processes.groups.history import NOT_KNOWN, Outcome, Recorder, now_us

POLL_S = 0.1
WORK_S = 0.05
"""The processing time of a batch. Many pauses start during it, followed by a commit."""
RECORDS_MAX = 200
TICK_S = 0.2
STALL_S = 1.0
REBALANCE_TIMEOUT_MS = 30_000
"""How long a member may take to give up its partitions. Much longer than a session, which tests wait for."""
HEARTBEATS_A_SESSION = 6
MODULES = {
    "ottla": "ottla_member",
    "confluent-kafka": "confluent_member",
    "aiokafka": "aiokafka_member",
    "kafka-python": "kafka_python_member",
}


@dataclass(frozen=True, slots=True)
class Settings:
    protocol: str
    """eager, cooperative or consumer."""
    bootstrap: str
    group: str
    topic: str
    session_ms: int

    @property
    def heartbeat_ms(self) -> int:
        return self.session_ms // HEARTBEATS_A_SESSION


class Account:
    """The member's partitions, processed records and pending commits, recorded in the history as they change."""

    def __init__(self, path: Path) -> None:
        self._recorder = Recorder(path)
        self._next: dict[int, int] = {}
        """The next offset to process of each owned partition."""
        self._committed: dict[int, int] = {}
        self._commits = 0

    def assigned(self, partitions: Iterable[int], generation: int, member_id: str) -> None:
        found = sorted(partitions)
        if not found:
            return
        for partition in found:
            self._next[partition] = self._committed[partition] = NOT_KNOWN
        self._recorder.write("assigned", ",".join(map(str, found)), generation, member_id or "-")

    def revoked(self, partitions: Iterable[int]) -> None:
        self._give_up("revoked", partitions)

    def lost(self, partitions: Iterable[int]) -> None:
        self._give_up("lost", partitions)

    def _give_up(self, kind: str, partitions: Iterable[int]) -> None:
        found = sorted(set(partitions) & set(self._next))
        for partition in found:
            del self._next[partition]
        if found:
            self._recorder.write(kind, ",".join(map(str, found)))

    def process(self, records: Iterable[tuple[int, int]]) -> bool:
        """Processes records in order, except those of partitions that it no longer owns."""
        runs: list[list[int]] = []
        for partition, offset in records:
            if partition not in self._next:
                continue
            self._next[partition] = offset + 1
            if runs and runs[-1][0] == partition and runs[-1][2] + 1 == offset:
                runs[-1][2] = offset
            else:
                runs.append([partition, offset, offset])
        if runs:
            self._recorder.write("processed", *(f"{partition}:{first}-{last}" for partition, first, last in runs))
        return bool(runs)

    def uncommitted(self) -> dict[int, int]:
        return {
            partition: offset
            for partition, offset in self._next.items()
            if offset not in (NOT_KNOWN, self._committed[partition])
        }

    def sends(self, offsets: Mapping[int, int], generation: int) -> int:
        self._commits += 1
        pairs = (f"{partition}:{offset}" for partition, offset in sorted(offsets.items()))
        self._recorder.write("sends", self._commits, generation, *pairs)
        return self._commits

    def answered(self, number: int, offsets: Mapping[int, int], outcome: Outcome, error: object = "") -> None:
        if outcome is Outcome.ACKED:
            self._committed.update(offsets)
        self._recorder.write(outcome, number, *([str(error)[:120].replace("\t", " ")] if error else []))

    def leaving(self) -> None:
        self._next.clear()
        self._recorder.write("leaving", "-")

    def watch_time(self) -> None:
        """Records when this process got no CPU time, because of a pause or a busy machine."""
        before_us = now_us()
        while True:
            time.sleep(TICK_S)
            if now_us() - before_us > (TICK_S + STALL_S) * 1e6:
                self._recorder.write("stalled", before_us)
            before_us = now_us()


def main(arguments: list[str]) -> None:
    client, protocol, bootstrap, group, topic, path, session_ms = arguments
    account = Account(Path(path))
    threading.Thread(target=account.watch_time, daemon=True).start()
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    run: Callable[[Settings, Account, threading.Event], None]
    run = import_module(f"tests.processes.groups.{MODULES[client]}").run
    run(Settings(protocol, bootstrap, group, topic, int(session_ms)), account, stopping)


if __name__ == "__main__":
    main(sys.argv[1:])
