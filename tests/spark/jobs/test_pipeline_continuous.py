"""Commands that run until Ctrl-C: they end cleanly, and the next run continues where they stopped."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ottla.archive.manifest import ManifestLog
from ottla.archive.store import Store
from ottla.archive.verification import verify
from ottla.cli.program import main
from ottla.client import TopicPartition
from ottla.testing import Cluster
from tests.spark.jobs.change_logs import produce_raw
from tests.spark.jobs.test_sessions import click, minutes, read_all
from tests.spark.topics import SLOW_START, STARTS_MAX, with_admin

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIMEOUT_S = 200


def wait_until(is_reached: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not is_reached():
        assert time.monotonic() < deadline, f"not after {TIMEOUT_S} s: {what}"
        time.sleep(0.1)


@contextmanager
def interrupting(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Does the work beside the program, then sends a Ctrl-C, even after a failure. The event: it has ended."""
    failures: list[BaseException] = []
    ended = threading.Event()

    def run() -> None:
        try:
            work(ended)
        except BaseException as failure:
            failures.append(failure)
        if not ended.is_set():
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    if failures:
        raise failures[0]


def test_an_archive_that_is_interrupted_goes_on(
    spark: SparkSession,
    cluster: Cluster,
    new_topic: Callable[..., str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    topic, store = new_topic(1), Store(str(tmp_path / "archive"))
    command = ["pipeline", "archive", "run", topic, "--into", store.root, "--group", f"archive-of-{topic}"]
    command += ["--bootstrap", cluster.bootstrap_servers]

    def archived() -> int:
        manifest = ManifestLog(store).load() if store.exists("_manifest") else None
        return (manifest.end_of(TopicPartition(topic, 0)) or 0) if manifest is not None else 0

    def add(numbers: range) -> None:
        produce_raw(cluster.bootstrap_servers, topic, [(b"k", b"%d" % number) for number in numbers])

    def watch_and_add(ended: threading.Event) -> None:
        wait_until(lambda: archived() == 10 or ended.is_set(), "the first batch is archived")
        add(range(10, 15))
        wait_until(lambda: archived() == 15 or ended.is_set(), "what came later is archived too")

    add(range(10))
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with interrupting(watch_and_add):
        code = main([*command, "--continuous", "--every", "100ms"])
    assert code == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("archived 15 records in 2 batches")
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    add(range(15, 18))
    assert main(command) == 0
    assert (archived(), verify(store, deep=True).faults) == (18, [])
    told = with_admin(cluster.bootstrap_servers, lambda admin: admin.group_offsets(f"archive-of-{topic}"))
    assert [each.offset for each in told.values()] == [18]


def test_sessions_that_are_interrupted_go_on(
    spark: SparkSession,
    cluster: Cluster,
    new_topic: Callable[..., str],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    topic, bootstrap = new_topic(1), cluster.bootstrap_servers
    command = ["pipeline", "sessions", topic, "--checkpoints", str(tmp_path), "--bootstrap", bootstrap]
    command += ["--gap", "5 minutes", "--late", "1 minute"]
    produce_raw(
        bootstrap, topic, [click("ann", "/", 0), click("ann", "/a", 2), (b"x", b"no JSON"), click("bob", "/", 9)]
    )

    def has(suffix: str, count: int) -> bool:
        return len(read_all(bootstrap, f"{topic}-{suffix}")) >= count

    def watch_and_add(ended: threading.Event) -> None:
        wait_until(
            lambda: ended.is_set() or (has("bad", 1) and has("pages", 2) and has("sessions", 1)),
            "first results are there",
        )
        produce_raw(bootstrap, topic, [click("ann", "/b", 30), (b"y", b"[]")])
        wait_until(lambda: ended.is_set() or (has("bad", 2) and has("sessions", 2)), "later ones are there")

    with_admin(bootstrap, lambda admin: admin.create_topic(f"{topic}-bad"))
    with_admin(bootstrap, lambda admin: admin.create_topic(f"{topic}-pages"))
    with_admin(bootstrap, lambda admin: admin.create_topic(f"{topic}-sessions"))
    with interrupting(watch_and_add):
        code = started([*command, "--continuous"], capfd)
    assert code == 0
    produce_raw(bootstrap, topic, [click("bob", "/c", 31), click("end", "/", 90)])
    assert started(command, capfd) == 0
    sessions = [json.loads(each.value or b"") for each in read_all(bootstrap, f"{topic}-sessions")]
    found = sorted((row["user"], minutes(row["start"]), row["clicks"]) for row in sessions)
    assert found == [("ann", 0, 2), ("ann", 30, 1), ("bob", 9, 1), ("bob", 31, 1)]
    views = [json.loads(each.value or b"") for each in read_all(bootstrap, f"{topic}-pages")]
    assert sum(row["views"] for row in views) == 5, "the one at the end is not over yet"
    assert [each.value for each in read_all(bootstrap, f"{topic}-bad")] == [b"no JSON", b"[]"]


def started(command: list[str], capfd: pytest.CaptureFixture[str]) -> int:
    """Returns the exit code. Retries if Spark could not start a worker within ten seconds."""
    for _ in range(STARTS_MAX):
        code = main(command)
        said = capfd.readouterr()
        if code == 0 or SLOW_START not in said.err:
            return code
    raise TimeoutError("Spark did not manage to start a Python worker")
