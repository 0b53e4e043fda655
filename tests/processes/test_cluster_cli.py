"""`ottla up`, `ottla broker` and `ottla cluster` with real broker processes."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ottla.cli import main
from ottla.testing.broker_process import BrokerProcess
from ottla.testing.cluster_processes import ClusterProcesses

COMMAND = [sys.executable, "-m", "ottla"]
WAIT_S = 90.0


class Done(NamedTuple):
    code: int
    stdout: str
    stderr: str


def ottla(bootstrap: str, *arguments: str, expected: int = 0) -> Done:
    """Runs a command in this process: starting another takes longer than most commands, and many are polled."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main([*arguments, "--bootstrap", bootstrap])
    return checked(Done(code, out.getvalue(), err.getvalue()), expected)


def ottla_process(bootstrap: str, *arguments: str, stdin: str = "", expected: int = 0) -> Done:
    done = subprocess.run(
        [*COMMAND, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        env={**os.environ, "OTTLA_BOOTSTRAP": bootstrap},
        timeout=WAIT_S,
        check=False,
    )
    return checked(Done(done.returncode, done.stdout, done.stderr), expected)


def checked(done: Done, expected: int) -> Done:
    assert done.code == expected, done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    return done


def as_json(bootstrap: str, *arguments: str) -> Any:
    return json.loads(ottla(bootstrap, *arguments, "--json").stdout)


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"not in {WAIT_S} s: {what}"
        time.sleep(0.2)


def read_values(bootstrap: str, topic: str) -> list[str]:
    return ottla_process(bootstrap, "consume", topic, "--from-beginning", "--until-end").stdout.splitlines()


# -- ottla up ---------------------------------------------------------------------------------------------------


class Up:
    """An `ottla up` process and its child processes."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.output, self.log = directory / "up.out", directory / "up.log"
        command = [*COMMAND, "up", "--port", "0", "--data", str(directory / "data"), *arguments]
        with self.output.open("wb") as out, self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=log)

    def bootstrap(self) -> str:
        until(lambda: self.output.read_text().endswith("\n") or self.process.poll() is not None, "ready")
        assert self.process.poll() is None, self.log.read_text()
        (line,) = self.output.read_text().splitlines()
        return line.removeprefix("ottla ready bootstrap=")

    def brokers(self) -> dict[int, int]:
        """Returns its broker processes by node id, newest first."""
        found = re.findall(r"^\[(\d+)\] .* data in .*, process (\d+)$", self.log.read_text(), re.MULTILINE)
        return {int(number): int(pid) for number, pid in found}


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Callable[..., Up]]:
    started: list[Up] = []

    def start(*arguments: str) -> Up:
        started.append(Up(tmp_path, *arguments))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.process.terminate()
            each.process.wait(WAIT_S)
        assert "Traceback" not in each.log.read_text()


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_up_starts_three_brokers_and_keeps_them(up: Callable[..., Up]) -> None:
    cluster = up()
    bootstrap = cluster.bootstrap()
    assert len(bootstrap.split(",")) == 3
    assert "replicas of a partition may share it" in cluster.log.read_text()
    ottla(bootstrap, "topics", "create", "orders", "-p", "3")
    described = as_json(bootstrap, "topics", "describe", "orders")
    assert all(len(each["replicas"]) == 3 for each in described["partitions"])
    assert {each["leader"] for each in described["partitions"]} == {1, 2, 3}

    victim = described["partitions"][0]["leader"]
    os.kill(cluster.brokers()[victim], signal.SIGKILL)
    ottla_process(bootstrap, "produce", "orders", stdin="".join(f"{number}\n" for number in range(1000)))
    until(
        lambda: f"broker {victim} ended: killed by SIGKILL. The other brokers continue" in cluster.log.read_text(),
        "it is said",
    )
    until(lambda: f"broker {victim} is serving again" in cluster.log.read_text(), "it restarts")
    until(lambda: as_json(bootstrap, "cluster", "describe")["is_healthy"], "all are in sync")
    assert len(as_json(bootstrap, "cluster", "describe")["brokers"]) == 3

    cluster.process.send_signal(signal.SIGINT)
    assert cluster.process.wait(WAIT_S) == 0
    assert not any(map(is_alive, cluster.brokers().values()))

    again = up("--brokers", "3")
    values = read_values(again.bootstrap(), "orders")
    assert sorted(map(int, values)) == list(range(1000))


def test_the_brokers_end_with_their_parent(up: Callable[..., Up]) -> None:
    cluster = up("--brokers", "2")
    cluster.bootstrap()
    brokers = list(cluster.brokers().values())
    assert len(brokers) == 2
    cluster.process.kill()
    cluster.process.wait(WAIT_S)
    until(lambda: not any(map(is_alive, brokers)), "the brokers end")


def test_the_data_of_one_broker_goes_on_as_one(up: Callable[..., Up], tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        ottla_process(broker.bootstrap, "produce", "orders", stdin="one\n")
    one = up()
    bootstrap = one.bootstrap()
    assert "," not in bootstrap
    assert read_values(bootstrap, "orders") == ["one"]
    assert "continues standalone" in one.log.read_text()
    one.process.terminate()
    assert one.process.wait(WAIT_S) == 0
    refused = up("--brokers", "3")
    assert refused.process.wait(WAIT_S) == 1
    assert "which a cluster of 3 would not use" in refused.log.read_text()


# -- ottla broker -----------------------------------------------------------------------------------------------


def test_a_node_id_that_is_in_use(tmp_path: Path) -> None:
    config = {"broker.session.timeout.ms": "1000"}
    with ClusterProcesses(tmp_path, 1, config=config) as cluster:
        path = tmp_path / "second.properties"
        values = {
            **config,
            "node.id": "1",
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": str(tmp_path / "second"),
            "ottla.coordination": f"sqlite:{tmp_path / 'coordination'}",
        }
        path.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
        refused = ottla_process("", "broker", "--config", str(path), expected=1)
        assert refused.stdout == ""
        assert "ottla: node.id=1 is in use. Another broker is registered with the id 1" in refused.stderr
        ottla(cluster.bootstrap, "topics", "create", "orders", "--replication-factor", "1")


def test_a_broker_waits_for_its_store_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "broker.properties"
    path.write_text(
        "node.id=1\nlisteners=PLAINTEXT://127.0.0.1:0\n"
        f"log.dirs={tmp_path / 'data'}\nottla.coordination=etcd:127.0.0.1:1/orders\n"
    )
    log = tmp_path / "log"
    with log.open("wb") as errors:
        process = subprocess.Popen([*COMMAND, "broker", "--config", str(path)], stderr=errors)
    try:
        until(lambda: "waiting for the coordination store etcd:127.0.0.1:1/orders" in log.read_text(), "it is said")
        process.terminate()
        assert process.wait(WAIT_S) == 0
        assert "stopped on SIGTERM before serving" in log.read_text()
    finally:
        process.kill()
        process.wait()


# -- ottla cluster ----------------------------------------------------------------------------------------------


@pytest.fixture
def four(tmp_path: Path) -> Iterator[ClusterProcesses]:
    # A session that outlives a command on a busy machine: a paused broker stays registered.
    config = {"broker.session.timeout.ms": "30000"}
    with ClusterProcesses(tmp_path, 4, config=config, ready_timeout_s=2 * WAIT_S) as cluster:
        bootstrap = cluster.bootstrap
        until(lambda: len(as_json(bootstrap, "cluster", "describe")["brokers"]) == 4, "all know of one another")
        ottla(bootstrap, "topics", "create", "orders", "-p", "8")
        # With keys, so that every partition gets some records: without them all may go to one partition.
        lines = "".join(f"{number}:{number}\n" for number in range(2000))
        ottla_process(bootstrap, "produce", "orders", "-K", ":", stdin=lines)
        yield cluster


def replicas_of(bootstrap: str, topic: str = "orders") -> dict[int, list[int]]:
    described = as_json(bootstrap, "topics", "describe", topic)
    return {each["index"]: each["replicas"] for each in described["partitions"]}


def until_replicas(bootstrap: str, are_right: Callable[[dict[int, list[int]]], bool]) -> None:
    """Waits, since the broker that is asked may learn of the change later than the controller."""
    until(lambda: are_right(replicas_of(bootstrap)), "every broker has heard of the move")


def data_bytes_of(bootstrap: str, broker_id: int) -> int:
    found = as_json(bootstrap, "cluster", "describe")["brokers"]
    return sum(each["data_bytes"] or 0 for each in found if each["id"] == broker_id)


def leaders_of(bootstrap: str, topic: str = "orders") -> dict[int, int]:
    return {each["index"]: each["leader"] for each in as_json(bootstrap, "topics", "describe", topic)["partitions"]}


def test_a_broker_is_drained_and_comes_back(four: ClusterProcesses) -> None:
    bootstrap = four.bootstrap
    before = replicas_of(bootstrap)
    planned = as_json(bootstrap, "broker", "drain", "4", "--dry-run")
    assert planned["executed"] is False
    assert replicas_of(bootstrap) == before
    held = [index for index, replicas in before.items() if 4 in replicas]
    assert [each["partition"] for each in planned["moved"]["partitions"]] == held

    drained = ottla(bootstrap, "broker", "drain", "4")
    assert f"{len(held)} partitions are moved off broker 4" in drained.stdout
    until_replicas(bootstrap, lambda found: all(sorted(each) == [1, 2, 3] for each in found.values()))
    until(lambda: as_json(bootstrap, "cluster", "describe")["is_healthy"], "all is well")
    report = as_json(bootstrap, "cluster", "describe")
    assert [(each["id"], each["replicas"], each["leaders"]) for each in report["brokers"]][3] == (4, 0, 0)
    assert report["brokers"][3]["data_bytes"] == 0
    assert "broker 4 cannot be drained" not in ottla(bootstrap, "broker", "drain", "4").stderr
    refusal = ottla(bootstrap, "broker", "drain", "9", expected=1).stderr
    assert "there is no broker 9, and it has no replicas; the brokers are 1, 2, 3, 4" in refusal
    assert four.broker(4).stop(40) == 0
    assert (
        "broker 3 cannot be drained: orders-0, orders-1" in ottla(bootstrap, "broker", "drain", "3", expected=1).stderr
    )

    four.broker(4).start()
    until(lambda: len(as_json(bootstrap, "cluster", "describe")["brokers"]) == 4, "the fourth is back")
    shown = ottla(bootstrap, "cluster", "reassign", "--balance")
    assert "nothing was changed; add --execute" in shown.stderr
    assert all(4 not in replicas for replicas in replicas_of(bootstrap).values())
    ottla(bootstrap, "cluster", "reassign", "--balance", "--execute", "--wait")
    brokers = as_json(bootstrap, "cluster", "describe")["brokers"]
    assert [each["replicas"] for each in brokers] == [6, 6, 6, 6]
    assert sorted(map(int, read_values(bootstrap, "orders"))) == list(range(2000))


def test_only_leadership_is_moved(four: ClusterProcesses) -> None:
    bootstrap = four.bootstrap
    before = replicas_of(bootstrap)
    assert 2 in leaders_of(bootstrap).values()
    ottla(bootstrap, "broker", "drain", "2", "--leaders-only")
    until(lambda: 2 not in leaders_of(bootstrap).values(), "others lead")
    after = replicas_of(bootstrap)
    assert {index: sorted(each) for index, each in after.items()} == {
        index: sorted(each) for index, each in before.items()
    }
    assert all(each[0] != 2 for each in after.values())
    ottla(bootstrap, "topics", "create", "alone", "--replication-factor", "1", "-p", "4")
    led = [index for index, leader in leaders_of(bootstrap, "alone").items() if leader == 2]
    stuck = ottla(bootstrap, "broker", "drain", "2", "--leaders-only", expected=1)
    assert f"no other replica is in sync to lead {len(led)} partition" in stuck.stderr


def test_a_plan_is_shown_executed_verified_and_taken_back(four: ClusterProcesses, tmp_path: Path) -> None:
    bootstrap = four.bootstrap
    now = replicas_of(bootstrap)[0]
    (new,) = set(range(1, 5)) - set(now)
    target = [new, *now[:2]]
    text = ",".join(map(str, target))
    one = ("cluster", "reassign", "-t", "orders", "-p", "0", "-r", text)
    shown = as_json(bootstrap, *one)
    assert shown["executed"] is False
    assert shown["current"]["partitions"] == [{"topic": "orders", "partition": 0, "replicas": now}]
    assert replicas_of(bootstrap)[0] == now
    assert (
        "1 partition not moved yet: 0 in progress, 1 not as planned"
        in ottla(bootstrap, *one, "--verify", expected=1).stderr
    )

    path = tmp_path / "plan.json"
    path.write_text(json.dumps(shown["proposed"]))
    done = ottla(bootstrap, "cluster", "reassign", "-f", str(path), "--execute", "--wait")
    (rollback,) = [line for line in done.stdout.splitlines() if line.startswith("{")]
    until_replicas(bootstrap, lambda found: found[0] == target)
    ottla(bootstrap, "cluster", "reassign", "-f", str(path), "--verify")
    assert as_json(bootstrap, "cluster", "reassign", "--list") == []
    assert "all replicas are already assigned as planned" in ottla(bootstrap, *one, "--execute").stdout

    path.write_text(rollback)
    ottla(bootstrap, "cluster", "reassign", "-f", str(path), "--execute", "--wait")
    until_replicas(bootstrap, lambda found: found[0] == now)
    refused = ottla(bootstrap, "cluster", "reassign", "-t", "orders", "-p", "0", "-r", "1,2,9", "--execute", expected=1)
    assert "includes broker 9, but no such broker is registered" in refused.stderr
    missing = ottla(bootstrap, "cluster", "reassign", "-t", "orders", "-p", "99", "-r", "1", expected=1)
    assert "orders-99: this partition does not exist" in missing.stderr
    assert (
        'topic "none": it does not exist'
        in ottla(bootstrap, "cluster", "reassign", "-t", "none", "--balance", expected=1).stderr
    )


def test_a_move_that_cannot_end_is_listed_and_cancelled(four: ClusterProcesses) -> None:
    bootstrap = four.bootstrap
    # The paused broker stays registered, so that it is accepted as a replica, but fetches nothing. If it were the
    # controller, nothing would be accepted until its session expires, and then it is not registered.
    controller = as_json(bootstrap, "cluster", "describe")["controller"]
    index, now = next((index, now) for index, now in replicas_of(bootstrap).items() if controller in now)
    (new,) = set(range(1, 5)) - set(now)
    os.kill(four.broker(new).pid, signal.SIGSTOP)
    try:
        text = ",".join(map(str, [new, *now[:2]]))
        ottla(bootstrap, "cluster", "reassign", "-t", "orders", "-p", str(index), "-r", text, "--execute")
        (moving,) = as_json(bootstrap, "cluster", "reassign", "--list")
        assert (moving["topic"], moving["partition"], moving["adding"], moving["removing"]) == (
            "orders",
            index,
            [new],
            now[2:],
        )
        cancelled = as_json(bootstrap, "cluster", "reassign", "--cancel", "--all")
        assert cancelled == {"cancelled": [["orders", index]]}
        assert as_json(bootstrap, "cluster", "reassign", "--list") == []
    finally:
        os.kill(four.broker(new).pid, signal.SIGCONT)
    until_replicas(bootstrap, lambda found: found[index] == now)


def test_what_is_wrong_is_described(four: ClusterProcesses) -> None:
    bootstrap = four.bootstrap
    healthy = ottla(bootstrap, "cluster", "describe", "--check").stdout
    assert "every partition has a leader and all its replicas in sync" in healthy
    before = replicas_of(bootstrap)
    ottla(bootstrap, "topics", "create", "alone", "--replication-factor", "1", "-p", "4")
    led = leaders_of(bootstrap, "alone")
    four.broker(1).kill()
    four.broker(2).kill()
    until(lambda: as_json(bootstrap, "cluster", "describe")["away"] == [1, 2], "they are missed")
    report = as_json(bootstrap, "cluster", "describe")
    assert {(each["topic"], each["partition"]) for each in report["offline"]} >= {
        ("alone", index) for index, leader in led.items() if leader in (1, 2)
    }
    both = {("orders", index) for index, replicas in before.items() if {1, 2} <= set(replicas)}
    assert both
    assert {(each["topic"], each["partition"]) for each in report["under_min_isr"] if each["topic"] == "orders"} == both
    assert len([each for each in report["under_replicated"] if each["topic"] == "orders"]) == 8
    complaint = ottla(bootstrap, "cluster", "describe", "--check", expected=1)
    assert "without a leader" in complaint.stderr
    assert "offline: broker 1,2" in complaint.stdout


def test_an_empty_disk_is_filled_again_and_a_broker_that_is_gone_for_good_is_drained(four: ClusterProcesses) -> None:
    bootstrap = four.bootstrap
    last = four.broker(4)
    had_bytes = data_bytes_of(bootstrap, 4)
    assert had_bytes > 0
    last.kill()
    shutil.rmtree(last.data)
    last.start()
    until(lambda: data_bytes_of(bootstrap, 4) >= had_bytes, "it gets what it had")
    until(lambda: as_json(bootstrap, "cluster", "describe")["is_healthy"], "it has everything again")
    last.kill()
    until(lambda: as_json(bootstrap, "cluster", "describe")["away"] == [4], "it is missed")
    ottla(bootstrap, "broker", "drain", "4")
    until_replicas(bootstrap, lambda found: all(sorted(each) == [1, 2, 3] for each in found.values()))
    until(lambda: as_json(bootstrap, "cluster", "describe")["is_healthy"], "all is well")
    ottla(bootstrap, "cluster", "describe", "--check")
    assert sorted(map(int, read_values(bootstrap, "orders"))) == list(range(2000))
