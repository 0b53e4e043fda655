"""A broker with a full disk rejects writes, keeps serving reads, and accepts writes as soon as there is space."""

from __future__ import annotations

import time
from pathlib import Path

from tests.processes.conftest import StartBroker
from tests.processes.traffic import Outcome, acknowledged, create_topic, delete_topic, read, write

RECORD = b"x" * 500_000
SMALL_JOURNAL = {"ottla.journal.bytes": "8388608", "ottla.journal.file.bytes": "1048576"}


def fill(bootstrap: str, topic: str) -> list[Outcome]:
    """Writes until the broker rejects a write; it never needs more than the disk's size."""
    outcomes: list[Outcome] = []
    for _ in range(60):
        outcomes += write(bootstrap, topic, [RECORD] * 4)
        if outcomes[-1].error is not None:
            break
    return outcomes


def wait_until_writable(bootstrap: str, topic: str) -> list[Outcome]:
    deadline = time.monotonic() + 60
    while True:
        outcomes = write(bootstrap, topic, [b"after"])
        if outcomes[0].error is None or time.monotonic() > deadline:
            return outcomes
        time.sleep(0.2)


def test_a_full_disk(start_broker: StartBroker, small_disk: Path) -> None:
    ballast = small_disk / "lost+found"  # the only name that a new data directory may contain
    ballast.write_bytes(bytes(40_000_000))
    broker = start_broker(data=small_disk, config=SMALL_JOURNAL)
    for topic in ("filling", "other"):
        create_topic(broker.bootstrap, topic)
    others = acknowledged(write(broker.bootstrap, "other", [b"%d" % n for n in range(100)]))
    assert len(others) == 100

    outcomes = fill(broker.bootstrap, "filling")
    kept = acknowledged(outcomes)
    assert outcomes[-1].error == "KAFKA_STORAGE_ERROR", "a full disk must refuse with a storage error"
    assert kept, "nothing was written before the disk was full"

    assert [offset for offset, _ in read(broker.bootstrap, "other")] == others
    assert {offset for offset, _ in read(broker.bootstrap, "filling")} >= set(kept)

    ballast.unlink()
    assert wait_until_writable(broker.bootstrap, "filling")[0].error is None
    assert wait_until_writable(broker.bootstrap, "other")[0].error is None

    broker.kill()
    broker.start()
    found = read(broker.bootstrap, "filling")
    assert {offset for offset, _ in found} >= set(kept)
    assert found[-1][1] == b"after"
    assert len(read(broker.bootstrap, "other")) == 101
    assert broker.running


def test_deleting_a_topic_frees_a_full_disk(start_broker: StartBroker, small_disk: Path) -> None:
    broker = start_broker(data=small_disk, config=SMALL_JOURNAL)
    for topic in ("filling", "waiting"):
        create_topic(broker.bootstrap, topic)
    assert fill(broker.bootstrap, "filling")[-1].error == "KAFKA_STORAGE_ERROR"
    delete_topic(broker.bootstrap, "filling")
    assert wait_until_writable(broker.bootstrap, "waiting")[0].error is None
