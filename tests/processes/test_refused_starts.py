"""A rejected start changes nothing: neither the files of a running cluster nor anyone else's."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.testing.cluster_processes import ClusterProcesses
from tests.processes.test_cluster_cli import COMMAND, WAIT_S, Up, ottla_process


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Up]:
    """Starts three brokers with `ottla up`."""
    cluster = Up(tmp_path)
    try:
        cluster.bootstrap()
        yield cluster
    finally:
        cluster.process.terminate()
        cluster.process.wait(WAIT_S)


def content(directory: Path) -> dict[str, bytes]:
    """Returns the contents of the files that tell brokers how to start."""
    return {path.name: path.read_bytes() for path in sorted(directory.glob("*.properties"))}


def test_an_up_that_is_refused_changes_nothing(cluster: Up, tmp_path: Path) -> None:
    before = content(tmp_path / "data")
    assert len(before) == 3
    for arguments in (["--port", "19000"], ["--storage", "memory"], ["--brokers", "5"]):
        second = Up(tmp_path, *arguments)
        assert second.process.wait(WAIT_S) == 1
        assert f"is in use by the process {cluster.process.pid}. Stop" in second.log.read_text()
        assert content(tmp_path / "data") == before


def test_an_up_is_refused_while_one_of_the_brokers_runs_by_itself(cluster: Up, tmp_path: Path) -> None:
    cluster.process.terminate()
    assert cluster.process.wait(WAIT_S) == 0
    before = content(tmp_path / "data")
    arguments = ["broker", "--config", str(tmp_path / "data" / "broker-2.properties")]
    alone = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert alone.stdout is not None
        assert alone.stdout.readline().startswith("ottla ready")
        second = Up(tmp_path, "--storage", "memory")
        assert second.process.wait(WAIT_S) == 1
        assert f"broker-2 is in use by the process {alone.pid}. Stop" in second.log.read_text()
        assert content(tmp_path / "data") == before
    finally:
        alone.terminate()
        alone.wait(WAIT_S)
        assert alone.stdout is not None
        alone.stdout.close()


def test_an_up_with_settings_that_are_not_valid_writes_nothing(tmp_path: Path) -> None:
    config = tmp_path / "bad.properties"
    config.write_text("num.partitions=none\n")
    refused = Up(tmp_path, "--config", str(config))
    assert refused.process.wait(WAIT_S) == 1
    assert "num.partitions" in refused.log.read_text()
    assert not (tmp_path / "data").exists()


def test_a_directory_of_others_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "letter.txt").write_text("dear")
    refused = Up(tmp_path, "--brokers", "1")
    assert refused.process.wait(WAIT_S) == 1
    assert "is not a data directory of Ottla" in refused.log.read_text()
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["letter.txt"]


def test_a_start_that_is_refused_keeps_the_note_of_a_clean_shutdown(tmp_path: Path) -> None:
    """The mark says that cache topics survived: a start that fails on a port in use must not consume it."""
    with ClusterProcesses(tmp_path, 1) as cluster:
        (broker,) = cluster.brokers
        assert broker.stop() == 0
        note = tmp_path / "broker-1" / "clean-shutdown"
        before = note.read_bytes()
        with socket.create_server(("127.0.0.1", 0)) as taken:
            (path,) = tmp_path.glob("*.properties")
            command = ["broker", "--config", str(path), "--port", str(taken.getsockname()[1])]
            command += ["--data", str(tmp_path / "broker-1")]
            refused = subprocess.run([*COMMAND, *command], capture_output=True, text=True, timeout=WAIT_S, check=False)
        assert refused.returncode == 1
        assert "is already in use" in refused.stderr
        assert note.read_bytes() == before


def test_data_of_another_cluster_leaves_a_new_store_empty(tmp_path: Path) -> None:
    with ClusterProcesses(tmp_path, 1) as cluster:
        assert cluster.brokers[0].stop() == 0
    path = tmp_path / "moved.properties"
    values = {
        "node.id": "1",
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": str(tmp_path / "broker-1"),
        "ottla.coordination": f"sqlite:{tmp_path / 'elsewhere'}",
    }
    path.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
    for expected in ("has no cluster yet", "has no cluster yet"):
        refused = ottla_process("127.0.0.1:1", "broker", "--config", str(path), expected=1)
        assert expected in refused.stderr
    values = {**values, "node.id": "2", "ottla.coordination": f"sqlite:{tmp_path / 'untouched'}"}
    path.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
    refused = ottla_process("127.0.0.1:1", "broker", "--config", str(path), expected=1)
    assert "belongs to node 1, and this broker is node 2" in refused.stderr
    assert not (tmp_path / "untouched").exists()
