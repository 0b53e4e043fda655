"""`make bench-failover`: how long a partition accepts no writes after its leader dies, and where that time goes.

    python -m ottla.bench.failover [--tries 20] [--stores sqlite,etcd] [--session-ms N]

Three brokers hold one partition with three replicas, and two producers write continuously with acks=all and
idempotence. The leader is repeatedly killed with SIGKILL. Each time, these moments are recorded: a surviving broker
knows that the leader is gone, it names a new leader, that leader first acknowledges a plain request with acks=all, and
each client receives its first acknowledgement. The same is done with SIGTERM, where leadership is handed over first;
there the longest gap between two acknowledgements counts. docs/reference/benchmarks.md has the details.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from ottla.bench.calls import Caller
from ottla.bench.etcd import etcd_program, running_etcd
from ottla.bench.frames import PreparedBatch, prepare_batch, produce_error_at, produce_frame
from ottla.bench.leaders import any_broker, ask_leaders, leader_of, move_leader, wait_until_in_sync
from ottla.bench.results import Row, append_rows, this_run
from ottla.bench.streams import LibrdkafkaStream, OttlaStream, Stream
from ottla.testing.cluster_processes import ClusterProcesses

TOPIC = "failover"
REPLICAS = 3
TIMEOUT_S = 60.0
LOOK_S = 0.002
QUIET_S = 0.3
"""The pause between two faults, with all replicas in sync, which gives clients time to settle."""
SESSION_DEFAULT_MS = 6000

NOTICED, ELECTED, TAKEN = "a survivor knows", "it names a new leader", "first acks=all write taken"
GAP = "longest gap"


@dataclass(slots=True)
class Samples:
    """Seconds since the fault, by event."""

    kills: dict[str, list[float]] = field(default_factory=dict)
    stops: dict[str, list[float]] = field(default_factory=dict)
    kills_of_controllers: int = 0

    def add(self, where: dict[str, list[float]], what: str, seconds: float) -> None:
        """Adds the time of one event to a table of samples."""
        where.setdefault(what, []).append(seconds)


class Experiment:
    """Repeated faults on one cluster."""

    def __init__(self, cluster: ClusterProcesses, streams: Sequence[Stream], batch: PreparedBatch) -> None:
        self._cluster = cluster
        self._streams = streams
        self._frame = produce_frame(TOPIC, batch)
        self.samples = Samples()

    def kill_leader(self, *, is_controller: bool) -> None:
        """Kills the leader. If it is also the controller, the other brokers have to notice that first."""
        leader = self._leader(is_controller)
        broker = self._cluster.broker(leader)
        samples = self.samples
        with self._survivors(leader) as survivors:
            samples.kills_of_controllers += ask_leaders(survivors[0], [TOPIC]).controller == leader
            killed_at = time.perf_counter()
            broker.kill()
            moments = self._watch(survivors, leader)
        for what, at in moments.items():
            samples.add(samples.kills, what, at - killed_at)
        for stream in self._streams:
            at = stream.first_after(moments[ELECTED])
            samples.add(samples.kills, f"first acknowledgement at {stream.name}", at - killed_at)
        broker.start()

    def stop_leader(self) -> None:
        """Stops the leader with SIGTERM, which hands over leadership first."""
        broker = self._cluster.broker(self._leader(is_controller=False))
        begin = time.perf_counter()
        broker.stop(TIMEOUT_S)
        stopped_at = time.perf_counter()
        time.sleep(QUIET_S)
        for stream in self._streams:
            end = stream.first_after(stopped_at + QUIET_S)
            gap = stream.longest_gap(begin, end)
            self.samples.add(self.samples.stops, f"{GAP} at {stream.name}", gap)
        self.samples.add(self.samples.stops, "SIGTERM to the end of the process", stopped_at - begin)
        broker.start()

    def _leader(self, is_controller: bool) -> int:
        """Moves leadership to the controller or away from it, lets the cluster settle, and returns the leader."""
        wait_until_in_sync(self._cluster.bootstrap, TOPIC, REPLICAS)
        with any_broker(self._cluster.bootstrap) as caller:
            found = ask_leaders(caller, [TOPIC])
        candidates = [node for node in sorted(found.addresses) if (node == found.controller) == is_controller]
        move_leader(self._cluster.bootstrap, TOPIC, (candidates or [found.partitions[TOPIC, 0].leader])[0])
        time.sleep(QUIET_S)
        now = time.perf_counter()
        for stream in self._streams:
            stream.first_after(now)
        return leader_of(self._cluster.bootstrap, TOPIC)[0]

    @contextlib.contextmanager
    def _survivors(self, leader: int) -> Iterator[list[Caller]]:
        with ExitStack() as stack:
            others = [node for node in range(1, REPLICAS + 1) if node != leader]
            yield [stack.enter_context(Caller(self._cluster.broker(node).port)) for node in others]

    def _watch(self, survivors: Sequence[Caller], dead: int) -> dict[str, float]:
        """Polls the metadata of the survivors in turn, and writes as soon as one of them is the new leader."""
        moments: dict[str, float] = {}
        deadline = time.perf_counter() + TIMEOUT_S
        while TAKEN not in moments:
            for caller in survivors:
                found = ask_leaders(caller, [TOPIC])
                now = time.perf_counter()
                leader = found.partitions[TOPIC, 0].leader
                if dead not in found.addresses:
                    moments.setdefault(NOTICED, now)
                if leader in found.addresses and leader != dead:
                    moments.setdefault(ELECTED, now)
                    if self._is_taken(survivors):
                        moments[TAKEN] = time.perf_counter()
                        moments.setdefault(NOTICED, moments[ELECTED])
                        break
            if time.perf_counter() > deadline:
                raise TimeoutError(f"no new leader in {TIMEOUT_S} s: {moments}")
            time.sleep(LOOK_S)
        return moments

    def _is_taken(self, survivors: Sequence[Caller]) -> bool:
        """Returns whether a broker accepts the write. A broker that is not the leader rejects it and writes nothing."""
        return any(caller.exchange(self._frame)[produce_error_at(TOPIC)] == 0 for caller in survivors)


def measure(
    store: str, coordination: str | None, directory: Path, tries: int, session_ms: int, say: Console
) -> Samples:
    """Repeats the faults on a new cluster."""
    config = {"broker.session.timeout.ms": str(session_ms)}
    batch = prepare_batch(100, 1024, int(time.time() * 1000))
    with ExitStack() as stack:
        cluster = stack.enter_context(
            ClusterProcesses(directory, coordination=coordination, config=config, arguments=["--log-level", "warning"])
        )
        with any_broker(cluster.bootstrap) as caller:
            caller.create_topics([TOPIC], 1, {"min.insync.replicas": "2"}, replicas=REPLICAS)
        streams = [stack.enter_context(kind(cluster.bootstrap, TOPIC)) for kind in (LibrdkafkaStream, OttlaStream)]
        experiment = Experiment(cluster, streams, batch)
        for number in range(tries):
            experiment.kill_leader(is_controller=number % 2 == 1)
            experiment.stop_leader()
            if say.is_terminal:
                say.print(f"{store}: {number + 1} of {tries}", end="\r")
        failures = [f"{stream.name}: {stream.failures[0]}" for stream in streams if stream.failures]
        if failures:
            raise RuntimeError(f"records were not delivered: {failures}")
    return experiment.samples


def rows_of(store: str, samples: Samples) -> list[Row]:
    """Builds the rows. Times count from the kill; a step is the time since the previous event."""
    rows = []
    before = 0.0
    for what, seconds in samples.kills.items():
        middle = median(seconds)
        figures = {"p50_s": middle, "max_s": max(seconds), "step_s": middle - before, "tries": len(seconds)}
        rows.append(Row("failover", what, f"{store}, kill -9", figures))
        if what in (NOTICED, ELECTED, TAKEN):
            before = middle
    for what, seconds in samples.stops.items():
        figures = {"p50_s": median(seconds), "max_s": max(seconds), "tries": len(seconds)}
        rows.append(Row("failover", what, f"{store}, SIGTERM", figures))
    return rows


def table_of(rows: Sequence[Row]) -> Table:
    """Returns the table of the terminal: a section for each store and fault."""
    table = Table(title="failover: seconds after the fault", title_justify="left", title_style="bold")
    for name in ("", ""):
        table.add_column(name)
    for name in ("p50", "max", "p50 of this step", "tries"):
        table.add_column(name, justify="right")
    previous = None
    for row in rows:
        if previous not in (None, row.subject):
            table.add_section()
        step = f"{row.figures['step_s']:+.3f}" if "step_s" in row.figures else ""
        figures = (f"{row.figures['p50_s']:.3f}", f"{row.figures['max_s']:.3f}", step, f"{row.figures['tries']:.0f}")
        table.add_row(row.subject if row.subject != previous else "", row.case, *figures)
        previous = row.subject
    return table


def main() -> int:
    """Measures each coordination store, prints the table and stores the rows. Returns the exit code."""
    options = parse_options()
    console = Console(width=None if sys.stdout.isatty() else 120)
    run = this_run(" ".join(sys.argv[1:]))
    begin = time.perf_counter()
    rows: list[Row] = []
    options.results.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.results, prefix="data-", ignore_cleanup_errors=True) as directory:
        for store in options.stores.split(","):
            with ExitStack() as stack:
                coordination = None
                if store == "etcd":
                    program = etcd_program()
                    if program is None:
                        console.print("etcd was not found; scripts/prepare_coordination.py fetches it")
                        continue
                    coordination = stack.enter_context(running_etcd(program, Path(directory) / "etcd"))
                where = Path(directory) / store
                samples = measure(store, coordination, where, options.tries, options.session_ms, console)
            rows += rows_of(store, samples)
            console.print(f"{store}: {samples.kills_of_controllers} of {options.tries} killed leaders were controller")
    console.print(table_of(rows))
    path = append_rows(options.results, run, rows)
    console.print(
        f"{time.perf_counter() - begin:.0f} s; broker.session.timeout.ms={options.session_ms}; "
        f"load average before: {run.load_before}; {path}"
    )
    return 0


def parse_options() -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m ottla.bench.failover", description="Measures the time from a fault to the next write."
    )
    parser.add_argument("--tries", type=int, default=20, help="number of kills and of controlled stops for each store")
    parser.add_argument("--stores", default="sqlite,etcd", help="coordination stores, separated by commas")
    parser.add_argument("--session-ms", type=int, default=SESSION_DEFAULT_MS, help="broker.session.timeout.ms")
    parser.add_argument("--results", type=Path, default=Path("bench-results"), help="directory for the results")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
