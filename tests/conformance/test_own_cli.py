"""The command line from end to end: a broker by `ottla up`, the other commands as processes beside it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.testing.broker_process import BrokerProcess
from tests.conformance.conftest import LEADERS_MOVE, ONE_BROKER, World

TopicOf = Callable[[str], str]
Command = Callable[..., "subprocess.CompletedProcess[str]"]
COMMAND = [sys.executable, "-m", "ottla"]


@pytest.fixture
def ottla(bootstrap: str) -> Command:
    """Runs a command against the broker; stdin, stdout and stderr are text."""

    def run(*arguments: str, stdin: str = "", expected: int = 0) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "OTTLA_BOOTSTRAP": bootstrap}
        done = subprocess.run(
            [*COMMAND, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            env=environment,
            timeout=60,
            check=False,
        )
        assert done.returncode == expected, done.stderr + done.stdout
        assert "Traceback" not in done.stderr
        return done

    return run


def json_lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def test_topics(ottla: Command, fresh_topic: TopicOf) -> None:
    topic = fresh_topic("cli")
    created = json.loads(ottla("topics", "create", topic, "-p", "2", "-c", "retention.ms=60000", "--json").stdout)
    assert created["created"] is True
    assert len(created["partitions"]) == 2
    assert topic in [each["name"] for each in json.loads(ottla("topics", "list", "--json").stdout)]
    assert topic in ottla("topics", "list").stdout
    assert "already exists" in ottla("topics", "create", topic, expected=1).stderr
    assert "already exists" in ottla("topics", "create", topic, "--if-not-exists").stdout

    ottla("topics", "alter", topic, "-p", "4", "-c", "max.message.bytes=5000", "--delete-config", "retention.ms")
    described = json.loads(ottla("topics", "describe", topic, "--json").stdout)
    configs = {entry["name"]: entry["value"] for entry in described["configs"]}
    assert configs["max.message.bytes"] == "5000"
    assert "retention.ms" not in configs
    assert [each["index"] for each in described["partitions"]] == [0, 1, 2, 3]
    assert "max.message.bytes" in ottla("topics", "describe", topic).stdout
    assert "retention.ms" in ottla("topics", "describe", topic, "--all").stdout

    refused = ottla("topics", "alter", topic, "-c", "retention.mss=1", expected=1).stderr
    assert "retention.mss" in refused
    assert ottla("topics", "delete", topic).stdout == f"deleted {topic}\n"
    assert f'topic "{topic}": it does not exist' in ottla("topics", "describe", topic, expected=1).stderr
    assert "it does not exist" in ottla("topics", "delete", topic, expected=1).stderr
    ottla("topics", "delete", topic, "--if-exists")


@pytest.mark.worlds(ONE_BROKER, LEADERS_MOVE)
@pytest.mark.leaders_at_rest("moving a leader changes the order of the replicas")
def test_a_topic_with_assigned_replicas(ottla: Command, fresh_topic: TopicOf, world: World) -> None:
    topic = fresh_topic("assigned")
    ids = list(range(1, world.replicas + 1))
    placement = [ids, ids[::-1]]
    text = ",".join(":".join(map(str, replicas)) for replicas in placement)
    created = json.loads(ottla("topics", "create", topic, "--replica-assignment", text, "--json").stdout)
    assert [each["replicas"] for each in created["partitions"]] == placement
    other = fresh_topic("assigned")
    refused = ottla("topics", "create", other, "--replica-assignment", "4711", expected=1).stderr
    assert "manual partition assignment" in refused
    for arguments in (["1", "-p", "1"], ["1", "--replication-factor", "1"], ["one"], ["1,"]):
        assert (
            "--replica-assignment"
            in ottla("topics", "create", other, "--replica-assignment", *arguments, expected=2).stderr
        )
    assert other not in ottla("topics", "list").stdout


def test_produce_and_consume(ottla: Command, fresh_topic: TopicOf, tmp_path: Path) -> None:
    topic = fresh_topic("cli")
    ottla("topics", "create", topic, "-p", "3")
    lines = "".join(f"k{number % 7}:value {number}\n" for number in range(1000))
    summary = json.loads(ottla("produce", topic, "-K", ":", "-z", "lz4", "-H", "a=b", "--json", stdin=lines).stdout)
    assert (summary["sent"], summary["acknowledged"]) == (1000, 1000)
    for name in ("one", "two"):
        (tmp_path / name).write_text(f"from file {name}")
    files = ottla("produce", topic, str(tmp_path / "one"), str(tmp_path / "two"), "--acks", "1").stdout
    assert files.startswith("2 records of 2 acknowledged")

    found = json_lines(ottla("consume", topic, "--from-beginning", "--until-end", "--json").stdout)
    assert len(found) == 1002
    keyed = [each for each in found if each["key"] is not None]
    assert all(each["headers"] == [["a", "b"]] for each in keyed)
    for key in {f"k{number}" for number in range(7)}:
        numbers = [int(each["value"].split()[1]) for each in keyed if each["key"] == key]
        assert numbers == list(range(int(key[1:]), 1000, 7))
    assert {each["value"] for each in found if each["key"] is None} == {"from file one", "from file two"}

    three = ottla("consume", topic, "--from-beginning", "-n", "3", "-p", "1", "-f", "%p %o\\n").stdout
    assert three == "1 0\n1 1\n1 2\n"
    assert ottla("consume", topic, "--offset", "5", "-n", "1", "-p", "1", "-f", "%o").stdout == "5\n"
    last = ottla("consume", topic, "--offset", "-2", "-e", "-f", "%v").stdout
    assert len(last.splitlines()) == 6
    recent = ottla("consume", topic, "--since", "1h", "-e", "-f", "%v").stdout
    assert len(recent.splitlines()) == 1002
    assert ottla("consume", topic, "--timeout", "0.2").stdout == ""
    assert "it does not exist" in ottla("consume", fresh_topic("nothing"), expected=1).stderr


def test_produce_says_what_was_not_acknowledged(ottla: Command, fresh_topic: TopicOf, tmp_path: Path) -> None:
    topic = fresh_topic("cli")
    ottla("topics", "create", topic, "-c", "max.message.bytes=300")
    done = ottla("produce", topic, stdin=f"short\n{'x' * 1000}\nshort\n", expected=1)
    assert "1 record not acknowledged" in done.stderr
    assert "MESSAGE_TOO_LARGE" in done.stderr
    assert done.stdout.startswith("2 records of 3 acknowledged")
    assert "has partitions 0 to 0, not 9" in ottla("produce", topic, "-p", "9", stdin="x\n", expected=1).stderr
    missing = ottla("produce", topic, str(tmp_path / "missing"), expected=1).stderr
    assert "missing: No such file or directory" in missing


def test_produce_takes_records_over_a_megabyte(ottla: Command, fresh_topic: TopicOf, tmp_path: Path) -> None:
    topic = fresh_topic("cli")
    ottla("topics", "create", topic, "-p", "2", "-c", "max.message.bytes=5000000")
    large = "x" * 3_000_000
    assert ottla("produce", topic, "-p", "0", stdin=f"{large}\nshort\n").stdout.startswith("2 records of 2")
    (tmp_path / "whole").write_text(f"{large}\n{'y' * 1_500_000}\n")
    assert ottla("produce", topic, "--whole-files", "-p", "1", str(tmp_path / "whole")).stdout.startswith("1 record of")
    found = json_lines(ottla("consume", topic, "--from-beginning", "-e", "--json").stdout)
    assert sorted(len(each["value"]) for each in found) == [5, 3_000_000, 4_500_002]
    refused = ottla("produce", topic, stdin="x" * 5_100_000, expected=1).stderr
    assert "MESSAGE_TOO_LARGE" in refused


def test_produce_checks_its_input_first(ottla: Command, fresh_topic: TopicOf, tmp_path: Path) -> None:
    topic = fresh_topic("cli")
    (tmp_path / "good").write_text("good\n")
    refused = ottla("produce", topic, str(tmp_path / "good"), str(tmp_path), expected=1).stderr
    assert f"{tmp_path} is a directory" in refused
    assert "No such file" in ottla("produce", topic, str(tmp_path / "good"), str(tmp_path / "no"), expected=1).stderr
    assert topic not in ottla("topics", "list").stdout


def test_produce_as_kcat_does(ottla: Command, fresh_topic: TopicOf) -> None:
    topic, copy = fresh_topic("cli"), fresh_topic("copy")
    ottla("topics", "create", topic, "-p", "1")
    ottla("topics", "create", copy, "-p", "1")
    ottla("produce", topic, "-K", ":", "-D", ";", "-Z", "-H", "h=1", "-H", "h=2", stdin="a:1;b:;:3")
    ottla("produce", topic, "-k", "fixed", stdin="4\n")
    found = json_lines(ottla("consume", topic, "--from-beginning", "-e", "-J").stdout)
    assert [(each["key"], each["value"]) for each in found] == [("a", "1"), ("b", None), (None, "3"), ("fixed", "4")]
    assert found[0]["headers"] == [["h", "1"], ["h", "2"]]
    assert ottla("consume", topic, "--from-beginning", "-e", "-Z", "-f", "%k=%v").stdout.splitlines()[1] == "b=NULL"

    lines = ottla("consume", topic, "--from-beginning", "-e", "--json").stdout
    ottla("produce", copy, "--json-lines", stdin=lines)
    copied = json_lines(ottla("consume", copy, "--from-beginning", "-e", "--json").stdout)
    assert [{**each, "topic": topic} for each in copied] == found

    bad = ottla("produce", copy, "-J", stdin='{"value": "5"}\n{"vlaue": "6"}\n', expected=1)
    assert "stdin, record 2:" in bad.stderr
    assert bad.stdout.startswith("1 record of 1 acknowledged")


def test_produce_prints_its_counts_on_an_interruption(bootstrap: str, ottla: Command, fresh_topic: TopicOf) -> None:
    topic = fresh_topic("cli")
    ottla("topics", "create", topic, "-p", "1")
    command = [*COMMAND, "produce", topic, "-b", bootstrap]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(b"one\ntwo\n")
        process.stdin.flush()
        assert ottla("consume", topic, "--from-beginning", "-n", "2", "--timeout", "30").stdout == "one\ntwo\n"
        process.send_signal(signal.SIGINT)
        printed, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert printed.startswith(b"2 records of 2 acknowledged by"), errors
    assert b"Traceback" not in errors


def test_consume_says_that_an_offset_is_past_the_end(ottla: Command, fresh_topic: TopicOf) -> None:
    topic = fresh_topic("cli")
    ottla("topics", "create", topic, "-p", "1")
    ottla("produce", topic, stdin="one\ntwo\n")
    refused = ottla("consume", topic, "--offset", "9", "--timeout", "1", expected=1).stderr
    assert refused == f"ottla: there is no offset 9 yet: {topic}-0 ends at 2\n"
    assert ottla("consume", topic, "--offset", "2", "--timeout", "0.2").stdout == ""
    assert ottla("consume", topic, "--offset", "-9", "-e").stdout == "one\ntwo\n"
    assert "does not exist" in ottla("consume", topic, "-p", "7", "--timeout", "1", expected=1).stderr


@pytest.mark.parametrize("command", [["dlq", "redrive"], ["dlq", "list"], ["consume", "-g", "of-nothing"]])
def test_an_unknown_topic_leaves_nothing_behind(ottla: Command, fresh_topic: TopicOf, command: list[str]) -> None:
    groups = ottla("groups", "list", "--json").stdout
    topic = fresh_topic("nothing")
    assert "it does not exist" in ottla(*command, topic, expected=1).stderr
    assert ottla("groups", "list", "--json").stdout == groups
    assert topic not in ottla("topics", "list").stdout


@contextlib.contextmanager
def consuming(bootstrap: str, topic: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [*COMMAND, "consume", topic, "--from-beginning", "-b", bootstrap]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_consume_ends_on_an_interruption(bootstrap: str, ottla: Command, fresh_topic: TopicOf) -> None:
    topic = fresh_topic("cli")
    ottla("produce", topic, stdin="one\n")
    with consuming(bootstrap, topic) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"one\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
        assert process.returncode == 130
        assert b"Traceback" not in errors


def test_consume_ends_when_nobody_reads(bootstrap: str, ottla: Command, fresh_topic: TopicOf) -> None:
    topic = fresh_topic("cli")
    ottla("produce", topic, stdin="".join(f"line {number}\n" for number in range(50_000)))
    with consuming(bootstrap, topic) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(timeout=20) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""


def test_the_log_of_a_running_broker(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        environment = {**os.environ, "OTTLA_BOOTSTRAP": broker.bootstrap}
        lines = "".join(f"{number}\n" for number in range(1000))
        subprocess.run([*COMMAND, "produce", "t"], input=lines, text=True, env=environment, timeout=60, check=True)
        subprocess.run([*COMMAND, "log", "verify", str(broker.data)], timeout=60, check=False)
        assert broker.stop() == 0
    verified = subprocess.run(
        [*COMMAND, "log", "verify", str(broker.data), "--records", "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert json.loads(verified.stdout)["records"] == 1000
    dumped = subprocess.run(
        [*COMMAND, "log", "dump", str(broker.data), "--records", "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    values = [record["value"] for batch in json_lines(dumped.stdout) for record in batch["records"]]
    assert values == [str(number) for number in range(1000)]


def failed_start(*arguments: str) -> str:
    done = subprocess.run([*COMMAND, "up", *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    (sentence,) = [line for line in done.stderr.splitlines() if line.startswith("ottla: ")]
    return sentence


def test_up_prints_one_line_and_says_why_it_cannot(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        output = (tmp_path / "data.out").read_text()
        assert output == f"ottla ready bootstrap={broker.bootstrap}\n"
        assert str(tmp_path / "data") in broker.log()
        busy = failed_start("--port", str(broker.port), "--data", str(tmp_path / "other"))
        assert f"127.0.0.1:{broker.port} is already in use" in busy
        assert "is in use by the process" in failed_start("--port", "0", "--data", str(tmp_path / "data"))
    (tmp_path / "newer").mkdir()
    identity = (tmp_path / "data" / "FORMAT").read_text()
    (tmp_path / "newer" / "FORMAT").write_text(identity.replace("version=1", "version=99"))
    assert "was written by a newer Ottla" in failed_start("--port", "0", "--data", str(tmp_path / "newer"))
    (tmp_path / "file").write_text("not a directory")
    unusable = failed_start("--port", "0", "--data", str(tmp_path / "file" / "data"))
    assert "cannot be used" in unusable
    elsewhere = failed_start("--host", "203.0.113.1", "--port", "0", "--data", str(tmp_path / "d"))
    assert "this machine does not have the address 203.0.113.1" in elsewhere


def test_up_on_every_address_says_what_it_advertises(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", arguments=("--host", "0.0.0.0")) as broker:
        assert f"but advertises {broker.bootstrap}" in broker.log()
        assert "--advertise HOST" in broker.log()
    with BrokerProcess(tmp_path / "other", arguments=("--host", "0.0.0.0", "--advertise", "localhost")) as broker:
        assert broker.bootstrap == f"localhost:{broker.port}"
        assert "--advertise HOST" not in broker.log()


def test_up_with_several_brokers_advertises_each(tmp_path: Path) -> None:
    arguments = ["up", "--brokers", "2", "--port", "0", "--host", "0.0.0.0", "--advertise", "localhost"]
    command = [*COMMAND, *arguments, "--data", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        addresses = process.stdout.readline().strip().partition("=")[2].split(",")
        process.terminate()
        assert process.wait(timeout=60) == 0
    assert [address.partition(":")[0] for address in addresses] == ["localhost", "localhost"]


def test_log_takes_the_name_of_a_topic(tmp_path: Path) -> None:
    data = tmp_path / "data"

    def ottla(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, *arguments], input=stdin, capture_output=True, text=True, timeout=60, check=False
        )

    with BrokerProcess(data) as broker:
        assert ottla("topics", "create", "named", "-p", "2", "-b", broker.bootstrap).returncode == 0
        for partition in ("0", "1"):
            ottla("produce", "named", "-p", partition, "-b", broker.bootstrap, stdin=f"in {partition}\n")
    whole = ottla("log", "dump", "named", "--records", "--data", str(data))
    assert [line.split("value ")[1] for line in whole.stdout.splitlines() if "value" in line] == ["'in 0'", "'in 1'"]
    one = ottla("log", "dump", "named", "-r", "-p", "1", "--data", str(data)).stdout
    assert "in 1" in one
    assert "in 0" not in one
    assert "2 files, 2 batches, 2 records" in ottla("log", "verify", "named", "--data", str(data)).stdout
    missing = ottla("log", "dump", "nothing", "--data", str(data))
    assert (missing.returncode, "nor a topic in" in missing.stderr) == (1, True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_up_ends_cleanly_on_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    broker = BrokerProcess(tmp_path / "data").start()
    os.kill(broker.pid, number)
    assert broker.wait(20) == 0
    assert f"stopping on {number.name}" in broker.log()


def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    """Both signals are pending while the process is stopped, so it gets them together when it continues."""
    broker = BrokerProcess(tmp_path / "data").start()
    for number in (signal.SIGSTOP, signal.SIGINT, signal.SIGTERM, signal.SIGCONT):
        os.kill(broker.pid, number)
    assert broker.wait(20) in (128 + signal.SIGINT, 128 + signal.SIGTERM)
    with broker.start():
        pass


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("server.properties", "num.partitions=4\nlisteners=PLAINTEXT://127.0.0.1:0\n"),
        ("ottla.toml", 'num.partitions = 4\nlisteners = "PLAINTEXT://127.0.0.1:0"\n'),
    ],
)
def test_up_takes_its_settings_from_a_file(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with BrokerProcess(tmp_path / "data", arguments=("--config", str(path))) as broker:
        environment = {**os.environ, "OTTLA_BOOTSTRAP": broker.bootstrap}
        command = [*COMMAND, "topics", "create", "t", "--json"]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=True)
        assert len(json.loads(done.stdout)["partitions"]) == 4


def test_produce_ends_on_an_interruption_while_it_waits_for_a_line(bootstrap: str, fresh_topic: TopicOf) -> None:
    topic = fresh_topic("cli")
    command = [*COMMAND, "produce", topic, "-b", bootstrap]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(b"a line\nhalf a li")
        process.stdin.flush()
        reading = [*COMMAND, "consume", topic, "--from-beginning", "-n", "1", "-b", bootstrap]
        read = subprocess.run(reading, capture_output=True, timeout=60, check=False)
        while b"does not exist" in read.stderr:  # the producer has not created it yet
            read = subprocess.run(reading, capture_output=True, timeout=60, check=False)
        assert read.stdout == b"a line\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 130
        assert process.stderr is not None
        assert b"Traceback" not in process.stderr.read()


@pytest.mark.parametrize("name", ["produce_consume.py", "arrow_table.py"])
def test_the_examples_run(bootstrap: str, name: str) -> None:
    path = Path(__file__).parents[2] / "examples" / name
    done = subprocess.run(
        [sys.executable, str(path), bootstrap], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "acknowledged" in done.stdout
