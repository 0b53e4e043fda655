"""200 groups of 5 members on one broker, and the cost of their heartbeats and commits.

Steady rows are a broker's daily work: every member sends a heartbeat every three seconds (five in the consumer
protocol) and commits every five seconds, as consumers do by default. The other rows show how much more it could do.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import cycle
from typing import NamedTuple

from ottla.bench.group_members import (
    ClassicMember,
    ConsumerMember,
    Group,
    LatencyRecorder,
    Member,
    connect,
    until_coordinated,
)
from ottla.bench.latencies import percentiles
from ottla.bench.processes import cpu_seconds, resident_bytes
from ottla.bench.quotients import per, rate
from ottla.bench.results import Goal, Row
from ottla.bench.workbench import Workbench
from ottla.protocol.model.errors import ErrorCode

GROUPS, MEMBERS = 200, 5
COMMIT_EVERY_S = 5.0
AT_A_TIME = 64
SECONDS, SECONDS_QUICK = 4.0, 1.0
RUSH = 0.25
"""The share of the time for requests sent as fast as possible, which give more samples."""
BUSY_GOAL = 0.1
TOPIC = "read-by-groups"
JOIN_ESTIMATE_S = 4.0


@dataclass(frozen=True, slots=True)
class Protocol:
    """A group protocol and its heartbeat interval."""

    name: str
    member: type[Member]
    heartbeat_every_s: float


PROTOCOLS = (Protocol("classic", ClassicMember, 3.0), Protocol("consumer", ConsumerMember, 5.0))


class GroupFigures(NamedTuple):
    """The figures of one case."""

    case: str
    figures: dict[str, float]


def estimate_s(seconds: float) -> float:
    """Returns the estimated duration of `measure` in seconds."""
    return len(PROTOCOLS) * (JOIN_ESTIMATE_S + (2 + 2 * RUSH) * seconds)


def measure(bench: Workbench, seconds: float) -> list[Row]:
    """Measures all groups with each protocol, on a new broker each."""
    rows = []
    for protocol in PROTOCOLS:
        bench.advance(0, f"{GROUPS} groups of {MEMBERS}, {protocol.name} protocol")
        broker = bench.new_broker()
        with bench.caller(broker) as caller:
            caller.create_topics([TOPIC], MEMBERS, {})
        found = bench.driver.call(drive, broker.port, broker.pid, protocol.name, GROUPS, MEMBERS, seconds)
        rows += [_row(protocol.name, each) for each in found]
        broker.kill()
        bench.advance(estimate_s(seconds) / len(PROTOCOLS), "")
    return rows


def _row(protocol: str, measured: GroupFigures) -> Row:
    case, figures = measured
    goal = None
    if case.startswith("a heartbeat every"):
        goal = Goal("of a core", figures["broker_busy"], BUSY_GOAL, is_upper=True)
    return Row("groups", case, protocol, figures, goal)


def drive(port: int, pid: int, protocol: str, groups: int, members: int, seconds: float) -> list[GroupFigures]:
    """Runs the members in a separate process."""
    (chosen,) = (each for each in PROTOCOLS if each.name == protocol)
    return asyncio.run(GroupLoad(port, pid, chosen).run(groups, members, seconds))


class GroupLoad:
    """Drives all members of all groups."""

    def __init__(self, port: int, pid: int, protocol: Protocol) -> None:
        self._port = port
        self._pid = pid
        self._protocol = protocol
        self._members: list[Member] = []

    async def run(self, groups: int, members: int, seconds: float) -> list[GroupFigures]:
        """Lets all members join, then measures the steady load and the highest rates. Closes the members."""
        every_s = self._protocol.heartbeat_every_s
        try:
            measured = [await self._enter(groups, members)]
            for case, work, share in (
                (f"a heartbeat every {every_s:g} s", self._beat_steadily, 1.0),
                (f"and a commit every {COMMIT_EVERY_S:g} s", self._beat_and_commit_steadily, 1.0),
                (f"heartbeats, {AT_A_TIME} at a time", self._beat_on, RUSH),
                (f"commits, {AT_A_TIME} at a time", self._commit_on, RUSH),
            ):
                measured.append(await self._measure(case, work, seconds * share))
            return measured
        finally:
            for member in self._members:
                member.close()

    async def _enter(self, groups: int, members: int) -> GroupFigures:
        first = await connect(self._port)
        await until_coordinated(first)
        first.end()
        for number in range(groups):
            group = Group(f"group-{number}", TOPIC)
            self._members += [self._protocol.member(group, await connect(self._port)) for _ in range(members)]
        begin, cpu_s = time.perf_counter(), cpu_seconds(self._pid)
        await asyncio.gather(*(member.enter() for member in self._members))
        seconds = time.perf_counter() - begin
        figures = {
            "seconds": seconds,
            "mb": resident_bytes(self._pid) / 1e6,
            "broker_busy": rate(cpu_seconds(self._pid) - cpu_s, seconds),
        }
        return GroupFigures(f"{groups} groups of {members} come together", figures)

    async def _measure(
        self, case: str, work: Callable[[LatencyRecorder, float], Awaitable[None]], seconds: float
    ) -> GroupFigures:
        watch = LatencyRecorder()
        begin, cpu_s, own_cpu_s = time.perf_counter(), cpu_seconds(self._pid), time.process_time()
        await work(watch, seconds)
        took_s = time.perf_counter() - begin
        p50_us, p99_us, p999_us = percentiles(watch.latencies)
        count = sum(watch.latencies.values())
        busy_s = cpu_seconds(self._pid) - cpu_s
        figures = {
            "requests_per_s": rate(count, took_s),
            "p50_us": p50_us,
            "p99_us": p99_us,
            "p999_us": p999_us,
            "broker_busy": rate(busy_s, took_s),
            "cpu_us_per_request": per(busy_s, count) * 1e6,
            "driver_busy": rate(time.process_time() - own_cpu_s, took_s),
        }
        return GroupFigures(case, figures)

    async def _beat_steadily(self, watch: LatencyRecorder, seconds: float) -> None:
        """Sends steady heartbeats, spread over time so that members of one group are far apart."""
        end_s = time.perf_counter() + seconds
        every_s = self._protocol.heartbeat_every_s
        shuffled = sorted(self._members, key=lambda member: member.member_id)
        await asyncio.gather(
            *(
                _again(watch, member.beat, at / len(shuffled) * every_s, every_s, end_s)
                for at, member in enumerate(shuffled)
            )
        )

    async def _commit_steadily(self, watch: LatencyRecorder, seconds: float) -> None:
        end_s = time.perf_counter() + seconds
        every_s = COMMIT_EVERY_S
        await asyncio.gather(
            *(
                _again(watch, member.commit, at / len(self._members) * every_s, every_s, end_s)
                for at, member in enumerate(self._members)
            )
        )

    async def _beat_and_commit_steadily(self, watch: LatencyRecorder, seconds: float) -> None:
        await asyncio.gather(self._beat_steadily(watch, seconds), self._commit_steadily(watch, seconds))

    async def _beat_on(self, watch: LatencyRecorder, seconds: float) -> None:
        await self._on(watch, seconds, lambda member: member.beat())

    async def _commit_on(self, watch: LatencyRecorder, seconds: float) -> None:
        await self._on(watch, seconds, lambda member: member.commit())

    async def _on(self, watch: LatencyRecorder, seconds: float, ask: Callable[[Member], Awaitable[ErrorCode]]) -> None:
        """Keeps a fixed number of requests in flight, from one member after another."""
        end_s = time.perf_counter() + seconds
        turn = cycle(self._members)

        async def go_on() -> None:
            while time.perf_counter() < end_s:
                await watch.time(ask(next(turn)))

        await asyncio.gather(*(go_on() for _ in range(AT_A_TIME)))


async def _again(
    watch: LatencyRecorder, ask: Callable[[], Awaitable[ErrorCode]], first_s: float, every_s: float, end_s: float
) -> None:
    at_s = time.perf_counter() + first_s
    while at_s < end_s:
        await asyncio.sleep(max(0.0, at_s - time.perf_counter()))
        await watch.time(ask())
        at_s += every_s
