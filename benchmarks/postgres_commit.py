"""The cost of a PostgreSQL commit that waits for the log, beside a local commit and a PostgreSQL standby.

    python -m benchmarks.postgres_commit [--clients 1,8] [--seconds 5] [--rounds 3] [--json FILE]

pgbench (TPC-B like, prepared) runs against one PostgreSQL with fsync on. Each round measures three kinds of commits,
one after another on the same server and the same disk: a plain local commit; a PostgreSQL standby on the same machine
(synchronous_commit=on: it has synced); and a log on three brokers, each a process with its own directory, in the
classes `memory` and `disk`. Only the standby being measured runs. All processes share this machine, so the figures are
only comparable within one run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
from tests.processes.postgres.world import WalBrokers
from tests.support.postgres_server import PostgresServer

from ottla.cli.output import print_table, say

MODES = ("local commit", "PostgreSQL standby", "log, 3 replicas, memory", "log, 3 replicas, disk")
SETTINGS = {"fsync": "on", "max_slot_wal_keep_size": "4GB", "shared_buffers": "128MB", "max_wal_size": "4GB"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", default="1,8")
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    clients = [int(each) for each in options.clients.split(",")]
    directory = Path(tempfile.mkdtemp(prefix="ottla-commit-"))
    found: dict[tuple[str, int], list[float]] = {(mode, each): [] for mode in MODES for each in clients}
    try:
        with WalBrokers(directory / "brokers") as brokers, PostgresServer(settings=SETTINGS) as server:
            pgbench(server, "-i", "-q", "-s", "10")
            for number in range(1, options.rounds + 1):
                say(f"round {number} of {options.rounds}")
                for mode in MODES:
                    with synchronous(mode, server, brokers, directory):
                        for each in clients:
                            found[mode, each] += latencies(server, directory, each, options.seconds)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    report(found, options.json)
    return 0


@contextlib.contextmanager
def synchronous(mode: str, server: PostgresServer, brokers: WalBrokers, directory: Path) -> Iterator[None]:
    """Makes commits wait for the standby of the mode. Nothing else is connected."""
    with contextlib.ExitStack() as stack:
        if mode == "PostgreSQL standby":
            stack.enter_context(standby(server))
        elif mode != "local commit":
            stack.enter_context(connector(server, brokers, directory, mode.rsplit(maxsplit=1)[-1]))
        name = "" if mode == "local commit" else "measured"
        stack.callback(standby_names, server, "")
        standby_names(server, name)
        yield


def standby_names(server: PostgresServer, name: str) -> None:
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("SET synchronous_commit = local")
        connection.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'")
        connection.execute("SELECT pg_reload_conf()")
        while name and not connection.execute("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'").fetchall():
            time.sleep(0.1)
    time.sleep(0.5)


@contextlib.contextmanager
def standby(server: PostgresServer) -> Iterator[None]:
    other = PostgresServer(settings=SETTINGS)
    try:
        source = f"host={server.home} user=ottla application_name=measured"
        program = str(server.binaries / "pg_basebackup")
        other.run(program, "-D", other.data_dir, "-R", "-X", "stream", "-c", "fast", "--no-sync", "-d", source)
        other.start()
        yield
    finally:
        other.close()


@contextlib.contextmanager
def connector(server: PostgresServer, brokers: WalBrokers, directory: Path, durability: str) -> Iterator[None]:
    command = [sys.executable, "-m", "ottla", "connect", "postgres-wal", server.url, "--wal", brokers.wal_servers]
    command += ["--log", f"bench-{durability}", "--durability", durability, "--replicas", "3", "--name", "measured"]
    with (directory / "connector.log").open("ab") as log:
        process = subprocess.Popen([*command, "--slot", f"bench_{durability}"], stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def pgbench(server: PostgresServer, *arguments: str, cwd: Path | None = None) -> None:
    command = [str(server.binaries / "pgbench"), *arguments, server.url]
    subprocess.run(command, check=True, capture_output=True, cwd=cwd)


def latencies(server: PostgresServer, directory: Path, clients: int, seconds: int) -> list[float]:
    """Returns the latency of each transaction in milliseconds, without the first half second."""
    with tempfile.TemporaryDirectory(dir=directory) as place:
        arguments = ["-n", "-M", "prepared", "-c", str(clients), "-j", "1", "-T", str(seconds), "-l"]
        pgbench(server, *arguments, cwd=Path(place))
        lines = [line.split() for path in Path(place).iterdir() for line in path.read_text().splitlines()]
    begin = min(int(each[4]) * 1_000_000 + int(each[5]) for each in lines)
    return [int(each[2]) / 1000 for each in lines if int(each[4]) * 1_000_000 + int(each[5]) > begin + 500_000]


def report(found: dict[tuple[str, int], list[float]], path: Path | None) -> None:
    rows = []
    for (mode, clients), all_ms in found.items():
        ms = sorted(all_ms)
        figures = {
            "mode": mode,
            "clients": clients,
            "transactions": len(ms),
            "p50_ms": round(statistics.median(ms), 2),
            "p95_ms": round(ms[int(len(ms) * 0.95)], 2),
            "p99_ms": round(ms[int(len(ms) * 0.99)], 2),
        }
        rows.append(figures)
    rows.sort(key=lambda each: (each["clients"], MODES.index(str(each["mode"]))))
    print_table(list(rows[0]), [list(each.values()) for each in rows], right=list(rows[0])[1:])
    if path is not None:
        machine = {"cores": os.cpu_count(), "load_1m": round(os.getloadavg()[0], 1)}
        path.write_text("".join(json.dumps({**each, **machine}) + "\n" for each in rows))


if __name__ == "__main__":
    sys.exit(main())
