"""Groups that mix members of `ottla.client`, librdkafka and Java, with the schedule and the rules of `test_groups`.
Formats and assignors are Kafka's, so members understand one another whichever leads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random

import pytest

from tests.processes.groups.group import Kind, why_no_java
from tests.processes.groups.rounds import Round, run_round
from tests.processes.groups.schedules import short
from tests.processes.groups.summary import render
from tests.processes.groups.worlds import KafkaWorld, OttlaWorld, World

SESSION_MS = 3000
MEMBERS = 3
PROTOCOLS = ("eager", "cooperative", "consumer")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("groups") / "brokers"
    jars = os.environ.get("OTTLA_GROUPS_KAFKA")
    world: World = KafkaWorld(directory, SESSION_MS, Path(jars)) if jars else OttlaWorld(directory, SESSION_MS)
    yield world
    assert world.close() == []


def test_members_and_the_coordinator_go(world: World, tmp_path: Path, seed: int) -> None:
    """One member of each library; Ottla's joins first and leads."""
    clients = "confluent-kafka+ottla" if why_no_java() else "confluent-kafka+ottla+java"
    kinds = [Kind(clients, protocol) for protocol in PROTOCOLS]
    round_ = Round(world, tmp_path / clients.replace("+", "-"), kinds, SESSION_MS, Random(f"{seed} groups {clients}"))
    judged = run_round(round_, partial(short, members=MEMBERS))
    print(render(judged))
    for one in judged:
        assert one.findings.ok, f"{one.kind} in {one.directory}:\n{one.findings}"
        assert one.history.zombies, "no commit of a removed member was tried"
