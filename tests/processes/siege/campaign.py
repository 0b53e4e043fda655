"""A siege from start to summary: a cluster, clients that record a history, a nemesis, and then the check."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.processes.groups.history import Span
from tests.processes.siege.checker import check
from tests.processes.siege.cluster import START_S, Cluster, Shape
from tests.processes.siege.findings import Anomaly, Findings
from tests.processes.siege.history import SUFFIX, History, Recorder, read_history
from tests.processes.siege.nemesis import Nemesis, Say
from tests.processes.siege.processes import Clients
from tests.processes.siege.summary import faults_of, render, totals
from tests.processes.siege.workloads import members, transactions, wal
from tests.processes.siege.workloads.workloads import Workloads

Only = Sequence[str] | None
"""Kinds of faults; None means all that are possible."""

PLAIN = "OTTLA_SIEGE_PLAIN"
"""Environment variable: run plain writers and readers only."""
FIRST_CALM_S = 5.0
LAST_CALM_S = 5.0
AT_THE_END = "at the end"
AT_ONCE_SHARE = 0.3
AT_ONCE_LEAST_S = 30.0
FINAL_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 120.0
ACKNOWLEDGED_LEAST = 1000
FINAL_READERS = ("librdkafka", "ottla")
CALM = ("calm", AT_THE_END)


def lay_siege_aloud(directory: Path, shape: Shape, seconds: float, seed: int, only: Only = None) -> None:
    """Runs a siege in its own process. SIGTERM ends it in order."""
    signal.signal(signal.SIGTERM, _end_in_order)
    began_s = time.monotonic()

    def say(sentence: str) -> None:
        print(f"{time.monotonic() - began_s:7.1f} {sentence}", flush=True)

    lay_siege(directory, shape, seconds, seed, say, only)


def _end_in_order(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second signal must not disturb the shutdown
    sys.exit(1)


def lay_siege(directory: Path, shape: Shape, seconds: float, seed: int, say: Say, only: Only = None) -> None:
    """Runs a siege. Leaves the history and the brokers' logs in `directory`. Faults start for that many seconds, each
    kind at least once."""
    directory.mkdir(parents=True)
    recorder = Recorder(directory / f"nemesis{SUFFIX}")
    try:
        cluster = Cluster(directory, shape)
        try:
            for sentence in cluster.left_out:
                say(f"left out, {sentence}")
            cluster.start()
            clients = Clients(directory, cluster.bootstrap, cluster.partitions, f"{seed} {shape}")
            workloads = _workloads(directory, cluster, f"{seed} {shape}")
            nemesis = Nemesis(cluster, recorder, Random(f"{seed} {shape}"), say, only)
            try:
                clients.start()
                if workloads is not None:
                    workloads.start()
                clients.wait_until_writing(START_S)
                if workloads is not None:
                    workloads.wait_until_busy(START_S)
                _faults(nemesis, seconds)
                _finish(cluster, clients, workloads, nemesis)
            finally:
                clients.kill()
                if workloads is not None:
                    workloads.kill()
        finally:
            cluster.close()
    finally:
        recorder.close()


def _workloads(directory: Path, cluster: Cluster, seed: str) -> Workloads | None:
    """Returns the workloads beside plain writers and readers."""
    if os.environ.get(PLAIN):
        return None
    shape = cluster.shape
    plain = next(iter(shape.topics.items()))
    return Workloads(directory, cluster.bootstrap, cluster.wal_servers, plain, shape.wal_class, seed)


def _faults(nemesis: Nemesis, seconds: float) -> None:
    began_s = time.monotonic()
    deadline_s = began_s + seconds
    nemesis.calm(FIRST_CALM_S)
    is_first = True
    while is_first or time.monotonic() < deadline_s:
        round_s = time.monotonic()
        nemesis.in_turns(deadline_s if not is_first else float("inf"))
        spent_s = time.monotonic() - round_s
        left_s = deadline_s - time.monotonic()
        if is_first or left_s > 0:
            nemesis.at_once(max(min(AT_ONCE_LEAST_S, seconds), min(left_s, spent_s * AT_ONCE_SHARE)))
        is_first = False


def _finish(cluster: Cluster, clients: Clients, workloads: Workloads | None, nemesis: Nemesis) -> None:
    """Ends all faults. Then writes must continue, every replica get in sync, and the final readers see everything."""
    cluster.heal()
    nemesis.wait_in_sync("after all faults")
    nemesis.calm(LAST_CALM_S, AT_THE_END)
    nemesis.calm(0, "over")
    if dead := clients.dead():
        nemesis.broken(f"clients ended by themselves: {dead}")
    clients.stop_writers()
    if workloads is not None:
        workloads.finish(nemesis.broken)
    for client in FINAL_READERS:
        if not clients.read_to_the_end(client, FINAL_TIMEOUT_S):
            nemesis.broken(f"the last reader, {client}, did not reach the end")
    clients.stop_readers()
    for node in cluster.nodes:
        code = node.stop(STOP_TIMEOUT_S)
        if code != 0:
            how = "did not end" if code is None else f"ended with {code}"
            nemesis.broken(f"{node.host} {how} on SIGTERM")
        if "Traceback" in node.log():
            at = node.log().index("Traceback")
            nemesis.broken(f"{node.host} logged: {node.log()[at : at + 1500]}")


@dataclass(frozen=True, slots=True)
class Verdict:
    findings: Findings
    operations: int
    """Acknowledged writes, committed transactions, commits of groups and appends to write-ahead logs."""
    faults: Counter[str]
    text: str


def judge(directory: Path, title: str) -> Verdict:
    """Checks the histories of all workloads, also those of an earlier run."""
    history = read_history(directory)
    findings = check(history)
    counts = _judge_workloads(directory, history, findings)
    count = totals(history)["acknowledged"]
    if count < ACKNOWLEDGED_LEAST:
        findings.add(Anomaly.BROKEN, f"{count} acknowledged writes are too few to prove anything")
    for sentence in _without_writes(history):
        findings.add(Anomaly.BROKEN, sentence)
    operations = count + sum(counts[name] for name in SUCCESSES)
    return Verdict(findings, operations, faults_of(history), render(history, findings, title, counts))


SUCCESSES = (
    "transactions, committed",
    "exactly-once transactions, committed",
    "group commits, acked",
    "append done",
    "fence done",
)


def _judge_workloads(directory: Path, history: History, findings: Findings) -> Counter[str]:
    counts: Counter[str] = Counter()
    if (directory / transactions.FOLDER).exists():
        committed = transactions.judge(directory / transactions.FOLDER)
        counts.update(committed.counts)
        for name, sentence in committed.anomalies:
            findings.add(name, sentence)
    if (directory / members.FOLDER).exists():
        grouped = members.judge(directory / members.FOLDER, list(_disturbed(history)))
        counts.update(grouped.counts)
        for name, sentence in grouped.anomalies:
            findings.add(name, sentence)
    if (directory / wal.FOLDER).exists():
        appended = wal.judge(directory / wal.FOLDER)
        counts.update(appended.counts)
        for sentence in appended.violations:
            findings.add("write-ahead log", sentence)
    return counts


def _disturbed(history: History) -> Iterator[Span]:
    """Returns the periods in which brokers fail or recover."""
    phases = [mark for mark in history.marks if mark.kind == "phase"]
    for mark, following in itertools.pairwise(phases):
        if mark.name not in CALM and not mark.name.startswith("before "):
            yield Span(mark.at_us, following.at_us)


def _without_writes(history: History) -> Iterator[str]:
    """Returns the partitions without a write after the last fault. An aborted run has no such period."""
    began_us = max(
        (mark.at_us for mark in history.marks if (mark.kind, mark.name) == ("phase", AT_THE_END)), default=None
    )
    if began_us is None:
        yield "the run was broken off"
        return
    for name, partition in history.partitions.items():
        if not any(one.at_us > began_us for one in partition.acknowledged):
            yield f"{name} took no write after the last fault"
