"""A journal that fails permanently: `disk` topics reject writes, everything else continues, nothing is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.testing.broker_process import BrokerProcess
from tests.processes.conftest import StartBroker
from tests.processes.traffic import acknowledged, create_topic, read, write

CLASSES = ("disk", "cache", "memory")
VALUES = [b"%d" % number for number in range(20)]


def failing(start_broker: StartBroker, tmp_path: Path, after: int) -> BrokerProcess:
    """Starts a broker whose journal fails after a number of writes: the volatile disk with a fault plan."""
    plan = tmp_path / "faults"
    plan.write_text(f"write journal EIO {after}\n")
    return start_broker(arguments=("--disk", "volatile", "--fault-file", str(plan)))


def test_a_failed_sync_never_acknowledges(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = failing(start_broker, tmp_path, after=40)
    for name in CLASSES:
        create_topic(broker.bootstrap, name, ottla_durability=name)
    kept = {name: acknowledged(write(broker.bootstrap, name, VALUES)) for name in CLASSES}

    refused = None
    for _ in range(200):
        outcome = write(broker.bootstrap, "disk", [b"more"])[0]
        if outcome.offset is None:
            refused = outcome
            break
        kept["disk"].append(outcome.offset)
    assert refused is not None, "the journal was to fail after 40 writes"
    assert refused.error == "KAFKA_STORAGE_ERROR"
    assert write(broker.bootstrap, "disk", [b"again"])[0].error == "KAFKA_STORAGE_ERROR"

    for name in ("cache", "memory"):
        more = acknowledged(write(broker.bootstrap, name, VALUES))
        assert len(more) == len(VALUES), f"{name} topics must go on"
        kept[name] += more
    for name in CLASSES:
        assert [offset for offset, _ in read(broker.bootstrap, name)] == kept[name], f"{name} topics must be readable"

    broker.kill()
    healthy = start_broker()
    found = [offset for offset, _ in read(healthy.bootstrap, "disk")]
    assert found[: len(kept["disk"])] == kept["disk"]
    assert write(healthy.bootstrap, "disk", [b"after"])[0].error is None


@pytest.mark.parametrize("name", CLASSES)
def test_new_topics_of_every_class_can_still_be_created(start_broker: StartBroker, tmp_path: Path, name: str) -> None:
    """Topics are stored in the catalog, not in the journal."""
    broker = failing(start_broker, tmp_path, after=1)
    create_topic(broker.bootstrap, "first")
    for _ in range(5):
        write(broker.bootstrap, "first", [b"x"])
    create_topic(broker.bootstrap, "second", ottla_durability=name)
    expected = "KAFKA_STORAGE_ERROR" if name == "disk" else None
    assert write(broker.bootstrap, "second", [b"x"])[0].error == expected
