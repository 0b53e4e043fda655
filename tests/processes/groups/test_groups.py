"""Groups of every client library with every protocol it has: members join, leave, are killed and paused beyond their
session, and the coordinator is killed. Each record is processed at least once, each partition has one owner per
generation, no acknowledged commit is lost, and a member that lost its session cannot commit.

`python -m tests.processes.groups` does the same for longer, with random faults. With OTTLA_GROUPS_KAFKA=FOLDER, a
folder with the jars of Apache Kafka's broker, these tests run against that broker.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random

import pytest

from tests.processes.groups.group import KINDS, why_no_java
from tests.processes.groups.rounds import Round, run_round
from tests.processes.groups.schedules import short
from tests.processes.groups.summary import render
from tests.processes.groups.worlds import KafkaWorld, OttlaWorld, World

SESSION_MS = 3000
MEMBERS = 3
"""At the start. Each member is a process that takes time to start."""
CLIENTS = tuple(dict.fromkeys(kind.client for kind in KINDS))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("groups") / "brokers"
    jars = os.environ.get("OTTLA_GROUPS_KAFKA")
    world: World = KafkaWorld(directory, SESSION_MS, Path(jars)) if jars else OttlaWorld(directory, SESSION_MS)
    yield world
    assert world.close() == []


@pytest.mark.parametrize("client", CLIENTS)
def test_members_and_the_coordinator_go(world: World, tmp_path: Path, seed: int, client: str) -> None:
    missing = why_no_java()
    if client == "java" and missing is not None:
        pytest.skip(missing)
    kinds = [kind for kind in KINDS if kind.client == client]
    round_ = Round(world, tmp_path / client, kinds, SESSION_MS, Random(f"{seed} groups {client}"))
    judged = run_round(round_, partial(short, members=MEMBERS))
    print(render(judged))
    for one in judged:
        assert one.findings.ok, f"{one.kind} in {one.directory}:\n{one.findings}"
        assert one.history.zombies, "no commit of a removed member was tried"
