"""A group under test: its members as processes, and operations on them."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from confluent_kafka import KafkaException

from tests.conformance.clients.java_client import CACHE
from tests.processes.groups.history import HARNESS, SUFFIX, Follower, Outcome, Ownership, Recorder, now_us
from tests.processes.groups.questions import Observer, commit_as

WAIT_S = 90.0
POLL_S = 0.1
LEAVE_S = 60.0
JAVA_FLAGS = ("-Xmx96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:CICompilerCount=1")


@dataclass(frozen=True, slots=True)
class Kind:
    """A client library and an assignment protocol."""

    client: str
    """A library, or several joined by +, whose members alternate."""
    protocol: str

    def __str__(self) -> str:
        return f"{self.client} {self.protocol}"


KINDS = (
    Kind("confluent-kafka", "eager"),
    Kind("confluent-kafka", "cooperative"),
    Kind("confluent-kafka", "consumer"),
    Kind("aiokafka", "eager"),
    Kind("kafka-python", "eager"),
    Kind("kafka-python", "cooperative"),
    Kind("java", "eager"),
    Kind("java", "cooperative"),
    Kind("java", "consumer"),
)
"""aiokafka has neither of the other protocols, kafka-python lacks the consumer protocol."""
OWN_KINDS = tuple(
    Kind(clients, protocol)
    for clients in ("ottla", "ottla+confluent-kafka+java")
    for protocol in ("eager", "cooperative", "consumer")
)
"""Kinds with `ottla.client`, alone and mixed with other libraries."""
CONSUMER = "consumer"
MIXED = "mixed"
MIXED_KINDS = (Kind("confluent-kafka", MIXED), Kind("java", MIXED))
"""Members of the classic and of the new protocol, so that the group switches its protocol with live members."""


def why_no_java() -> str | None:
    if shutil.which("java") is None or not (CACHE / "classes" / "GroupMember.class").exists():
        return "the Java client is not there (make test fetches it where it can)"
    return None


@dataclass(frozen=True, slots=True)
class Place:
    """The environment of a group."""

    bootstrap: str
    topic: str
    partitions: int
    session_ms: int


class Group:
    def __init__(self, kind: Kind, name: str, place: Place, directory: Path, chance: Random) -> None:
        directory.mkdir(parents=True)
        self.kind = kind
        self.name = name
        self.directory = directory
        self._place = place
        self._chance = chance
        self._numbers = itertools.count(1)
        self._members: dict[str, subprocess.Popen[bytes]] = {}
        self._paused: dict[str, list[Ownership]] = {}
        """The partitions that each paused member had when it was paused."""
        self._follower = Follower(directory)
        self._recorder = Recorder(directory / f"{HARNESS}{SUFFIX}")
        self._observer = Observer(place.bootstrap, name, place.topic, place.partitions)

    @property
    def size(self) -> int:
        return len(self._members)

    @property
    def awake(self) -> list[str]:
        return [name for name in self._members if name not in self._paused]

    # Operations

    def join(self, count: int = 1) -> None:
        for _ in range(count):
            number = next(self._numbers)
            name = f"member-{number}"
            clients = self.kind.client.split("+")
            with (self.directory / f"{name}.log").open("wb") as log:
                command = self._command(clients[number % len(clients)], self.directory / f"{name}{SUFFIX}")
                self._members[name] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            self._recorder.write("started", name)

    def _command(self, client: str, path: Path) -> list[str]:
        place = self._place
        protocol = self.kind.protocol
        if protocol == MIXED:
            protocol = self._chance.choice(("cooperative", "consumer"))  # eager and cooperative members cannot be mixed
        arguments = [protocol, place.bootstrap, self.name, place.topic, str(path), str(place.session_ms)]
        if client == "java":
            log_level = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
            return [
                "java",
                *JAVA_FLAGS,
                log_level,
                "-cp",
                f"{CACHE}/classes:{CACHE}/libraries/*",
                "GroupMember",
                *arguments,
            ]
        return [sys.executable, "-m", "tests.processes.groups.member", client, *arguments]

    def kill_hung(self, after_s: float) -> int:
        """Kills members whose last commit has not returned for so long. Returns how many."""
        last = {one.member: one for one in self._follower.catch_up().commits}
        before_us = now_us() - after_s * 1e6
        waiting = {name for name, one in last.items() if one.done_us is None and one.sent_us < before_us}
        hung = [name for name in self.awake if name in waiting]
        for name in hung:
            self.kill(name)
        return len(hung)

    def kill(self, name: str | None = None) -> None:
        """Sends SIGKILL: the partitions become free when the session expires."""
        name = name or self._chance.choice(self.awake)
        process = self._members.pop(name)
        process.kill()
        process.wait()
        self._recorder.write("killed", name)

    def leave(self) -> None:
        name = self._chance.choice(self.awake)
        process = self._members.pop(name)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            self.broken(f"{name} did not leave in {LEAVE_S:.0f} s")
        self._recorder.write("left", name)

    def pause(self) -> None:
        name = self._chance.choice(self.awake)
        history = self._follower.catch_up()
        self._recorder.write("paused", name)
        os.kill(self._members[name].pid, signal.SIGSTOP)
        self._paused[name] = list(history.owned[name].values())

    def commit_for_the_paused(self) -> None:
        """Commits in the name of paused members after others have taken over; these commits must be rejected."""
        for name, had in self._paused.items():
            if not had or not had[0].member_id.strip("-") or had[0].generation < 0:
                continue
            one = self._chance.choice(had)
            generation = max(one.generation, self._follower.history.last_generation(name))
            error = commit_as(
                self._place.bootstrap,
                self.name,
                self._place.topic,
                one.partition,
                member_id=one.member_id,
                generation=generation,
                offset=0,
            )
            self._recorder.write("zombie", name, one.partition, generation, error.name)

    def resume(self) -> None:
        for name in tuple(self._paused):
            os.kill(self._members[name].pid, signal.SIGCONT)
            self._recorder.write("resumed", name)
            del self._paused[name]

    def coordinator_goes(self, node_id: int) -> None:
        self._recorder.write("away", f"broker-{node_id}")

    def coordinator_is_back(self, node_id: int) -> None:
        self._recorder.write("back", f"broker-{node_id}")

    def broken(self, sentence: str) -> None:
        self._recorder.write("broken", sentence)

    # Waiting

    def is_shared_out(self) -> bool:
        """Returns whether each partition has one owner among the running members, evenly."""
        history = self._follower.catch_up()
        shares = [set(history.owned[name]) for name in self.awake]
        sizes = [len(share) for share in shares]
        owned = sorted(itertools.chain.from_iterable(shares))
        return owned == list(range(self._place.partitions)) and max(sizes) - min(sizes) <= 1

    def has_committed_since(self, at_us: int) -> bool:
        history = self._follower.catch_up()
        return any(one.sent_us > at_us and one.outcome is Outcome.ACKED for one in reversed(history.commits))

    def has_read_all(self) -> bool:
        """Returns whether everything in the log is committed."""
        try:
            return self._observer.committed() == self._observer.ends()
        except (KafkaException, OSError):  # a leader or a coordinator moves
            return False

    def wait_until(self, what: str, holds: Callable[[], bool]) -> bool:
        """Waits. Returns False, and adds a line to the history, after the timeout."""
        deadline_s = time.monotonic() + WAIT_S
        while not holds():
            self._bury()
            if time.monotonic() > deadline_s:
                shares = {name: sorted(self._follower.history.owned[name]) for name in self._members}
                self.broken(f"not {what} after {WAIT_S:.0f} s: {shares}")
                return False
            time.sleep(POLL_S)
        return True

    def _bury(self) -> None:
        """Records members that ended by themselves."""
        for name, process in tuple(self._members.items()):
            if process.poll() is not None:
                del self._members[name]
                self._paused.pop(name, None)
                self._recorder.write("killed", name)
                self.broken(f"{name} ended by itself, with {process.returncode}")

    def drain(self) -> None:
        """Waits until all members have read everything; nothing is written any more."""
        self.wait_until("shared out in the end", self.is_shared_out)
        self.wait_until("read to the end", self.has_read_all)

    def finish(self) -> None:
        """Records the final state of the group, then ends it."""
        for kind, ask in (("end", self._observer.ends), ("committed", self._observer.committed)):
            for partition, offset in enumerate(self._answer(kind, ask)):
                self._recorder.write(kind, partition, offset)
        self.wait_until("shared out at last", self.is_shared_out)
        self.end()

    def _answer(self, what: str, ask: Callable[[], Sequence[int]]) -> Sequence[int]:
        deadline_s = time.monotonic() + WAIT_S
        while True:
            try:
                return ask()
            except (KafkaException, OSError) as problem:  # another broker is taking over
                if time.monotonic() > deadline_s:
                    self.broken(f"no answer for {what}: {problem}")
                    return ()
                time.sleep(POLL_S)

    def end(self) -> None:
        """Kills all members without recording it in the history."""
        for process in self._members.values():
            process.kill()
            process.wait()
        self._members.clear()
        self._paused.clear()
        self._observer.close()
