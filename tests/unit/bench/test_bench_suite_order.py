"""The order in which cells are measured, how targets use configurations, and the files of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.bench.results import Run
from ottla.bench.suite.matrix import Matrix, TargetPlan
from ottla.bench.suite.order import cells_of, estimate_s
from ottla.bench.suite.settings import DEFAULTS, Value
from ottla.bench.suite.store import Store, done_cells
from ottla.bench.suite.target_support import problem_on, topic_configs

OTTLA = TargetPlan("ottla", "ottla", brokers=3)
KAFKA = TargetPlan("kafka", "kafka", brokers=3)
RUN = Run("2026-01-01T00:00:00Z", "abc", "machine", "kernel", "3.11")


def matrix(alone: bool = False, **factors: list[Value]) -> Matrix:
    named = {name.replace("__", "."): values for name, values in factors.items()}
    return Matrix("m", (OTTLA, KAFKA), repetitions=2, alone=alone, factors=named)


def names(found: Matrix) -> list[str]:
    return [cell.name for cell in cells_of(found)[0]]


def test_targets_take_turns_within_each_repetition() -> None:
    assert names(matrix(producer__acks=[0, 1])) == [
        "ottla: acks=0 #1", "kafka: acks=0 #1", "ottla: acks=1 #1", "kafka: acks=1 #1",
        "ottla: acks=0 #2", "kafka: acks=0 #2", "ottla: acks=1 #2", "kafka: acks=1 #2",
    ]  # fmt: skip


def test_alone_is_one_target_after_the_other() -> None:
    assert names(matrix(alone=True, producer__acks=[0, 1]))[:4] == [
        "ottla: acks=0 #1", "ottla: acks=1 #1", "kafka: acks=0 #1", "kafka: acks=1 #1",
    ]  # fmt: skip


def test_brokers_start_once_for_each_storage() -> None:
    found = names(matrix(producer__acks=[0, 1], storage=["disk", "ram-disk"]))
    assert [("ram-disk" in name) for name in found[:8]] == [False] * 4 + [True] * 4


def test_what_a_target_cannot_do_is_left_out_with_its_reason() -> None:
    cells, left_out = cells_of(matrix(storage=["disk", "memory"]))
    assert len(cells) == 6
    assert [(each.target, each.reason) for each in left_out] == [
        ("kafka", "Apache Kafka has no topics that are kept only in memory")
    ]


@pytest.mark.parametrize(
    ("target", "changes", "expected"),
    [
        (OTTLA, {"topic.replication": 3}, None),
        (TargetPlan("one", "ottla"), {"topic.replication": 3}, "3 replicas need as many brokers, not 1"),
        (TargetPlan("far", "bootstrap", bootstrap="far:1"), {"topic.replication": 3}, None),
        (TargetPlan("far", "bootstrap", bootstrap="far:1"), {"storage": "ram-disk"}, "the brokers are already running"),
        (
            TargetPlan("far", "bootstrap", bootstrap="far:1"),
            {"consumers.clients": 1, "consumers.read": "disk"},
            "files of brokers that run elsewhere",
        ),
    ],
)
def test_what_fits(target: TargetPlan, changes: dict[str, Value], expected: str | None) -> None:
    found = problem_on(target, {**DEFAULTS, **changes})
    assert (found is None) == (expected is None)
    assert expected is None or (found or "").startswith(expected)


@pytest.mark.parametrize(
    ("target", "durability", "expected"),
    [
        (OTTLA, "disk", {"ottla.durability": "disk"}),
        (OTTLA, "cache", {"ottla.durability": "cache"}),
        (KAFKA, "disk", {"flush.messages": "1"}),
        (KAFKA, "cache", {}),
    ],
)
def test_equal_safety_by_each_ones_names(target: TargetPlan, durability: str, expected: dict[str, str]) -> None:
    configs = topic_configs(target, {**DEFAULTS, "topic.durability": durability, "topic.replication": 3})
    assert configs.pop("min.insync.replicas") == "2"
    assert configs.pop("retention.ms") == "604800000"
    assert configs == expected


def test_the_estimate_knows_what_takes_time() -> None:
    (cell, *_), _ = cells_of(matrix(producer__duration_s=[5.0]))
    (longer, *_), _ = cells_of(matrix(producer__duration_s=[5.0], consumers__clients=[1], consumers__read=["log"]))
    assert estimate_s(longer, 1.0) == pytest.approx(estimate_s(cell, 1.0) + 5.0)


def line(key: str, repetition: int, **more: object) -> dict[str, object]:
    return {"kind": "cell", "key": key, "target_key": "t", "repetition": repetition, **more}


def test_what_was_cut_by_a_crash_is_measured_again(tmp_path: Path) -> None:
    store = Store(tmp_path / "results")
    store.append(RUN, line("a", 0, figures={}))
    store.append(RUN, line("a", 1, figures={}))
    whole = store.path.read_bytes()
    store.path.write_bytes(whole[:-20])
    assert done_cells(store.lines()) == {("a", "t", 0)}
    store.append(RUN, line("a", 1, figures={}))
    assert done_cells(store.lines()) == {("a", "t", 0), ("a", "t", 1)}


def test_failures_are_tried_again(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.append(RUN, line("a", 0, failure="refused"))
    assert done_cells(store.lines()) == set()


def test_a_fresh_start_throws_nothing_away(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.set_aside() is None
    for expected in ("results-1.jsonl", "results-2.jsonl"):
        store.append(RUN, line("a", 0, figures={}))
        aside = store.set_aside()
        assert aside is not None
        assert aside.name == expected
        assert store.lines() == []


def test_a_topic_in_memory_keeps_no_more_than_there_is_room_for() -> None:
    """Six partitions, each on all three brokers, in the 1 GiB that a broker has for them."""
    in_memory = DEFAULTS | {"storage": "memory", "topic.partitions": 6, "topic.replication": 3}
    assert int(topic_configs(OTTLA, in_memory)["retention.bytes"]) * 6 <= 1 << 29
    assert "retention.bytes" not in topic_configs(OTTLA, DEFAULTS)
