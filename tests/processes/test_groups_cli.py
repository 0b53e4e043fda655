"""`ottla groups` while brokers die: the coordinator of a group, and the only replica of a partition that it reads."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from ottla.cli import main
from ottla.testing.cluster_processes import ClusterProcesses

WAIT_S = 90.0
GROUP = "billing"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcesses]:
    with ClusterProcesses(tmp_path) as brokers:
        yield brokers
    assert "Traceback" not in brokers.log(), brokers.log()[-8000:]


def ottla(cluster: ClusterProcesses, *arguments: str) -> str:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main([*arguments, "--bootstrap", cluster.bootstrap])
    assert code == 0, err.getvalue() + out.getvalue()
    return out.getvalue()


def described(cluster: ClusterProcesses) -> Any:
    return json.loads(ottla(cluster, "groups", "describe", GROUP, "--json"))


def test_a_coordinator_that_dies(cluster: ClusterProcesses, tmp_path: Path) -> None:
    """The next coordinator has its offsets. A partition that died with it is reported and delays nothing."""
    lines = tmp_path / "lines"
    lines.write_text("x\n" * 10)
    ottla(cluster, "topics", "create", "orders", "--partitions", "1")
    ottla(cluster, "produce", "orders", str(lines))
    ottla(cluster, "groups", "reset", GROUP, "-t", "orders", "--to-offset", "3", "--create", "--execute")
    coordinator = described(cluster)["coordinator"]
    ottla(cluster, "topics", "create", "alone", "--partitions", "3", "--replication-factor", "1")
    lone = json.loads(ottla(cluster, "topics", "describe", "alone", "--json"))["partitions"]
    (dying,) = [each["index"] for each in lone if each["leader"] == coordinator]
    ottla(cluster, "groups", "reset", GROUP, "-t", "alone", "--to-latest", "--execute")

    cluster.broker(coordinator).kill()
    deadline = time.monotonic() + WAIT_S
    while True:  # until the others have noticed, a partition still names the dead leader
        told = described(cluster)
        partitions = {(each["topic"], each["partition"]): each for each in told["partitions"]}
        if partitions["alone", dying]["problem"] is not None:
            break
        assert time.monotonic() < deadline, told
    assert told["coordinator"] != coordinator
    assert (partitions["orders", 0]["committed"], partitions["orders", 0]["lag"]) == (3, 7)
    assert partitions["alone", dying]["problem"] == "it has no leader"
    assert partitions["alone", dying]["committed"] == 0
    assert told["lag"] == 7, "what is known"

    (listed,) = json.loads(ottla(cluster, "groups", "list", "--json"))
    assert (listed["name"], listed["state"], listed["lag"]) == (GROUP, "Empty", 7)
    ottla(cluster, "groups", "reset", GROUP, "-t", "orders", "--to-latest", "--execute")
    assert described(cluster)["lag"] == 0
    ottla(cluster, "groups", "delete", GROUP)
    assert json.loads(ottla(cluster, "groups", "list", "--json")) == []
