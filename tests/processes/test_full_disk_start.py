"""A killed broker restarts on a disk that others have filled to the last byte."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.conftest import StartBroker
from tests.processes.test_full_disk import SMALL_JOURNAL, fill, wait_until_writable
from tests.processes.traffic import acknowledged, create_topic, delete_topic, read, write

RECORD = b"x" * 50_000
NEVER_FLUSHED = {**SMALL_JOURNAL, "ottla.flush.interval.ms": "3600000"}


@pytest.fixture(params=["tmpfs", "ext4"])
def full_disk(request: pytest.FixtureRequest, small_disk: Path, tmp_path: Path) -> Iterator[Path]:
    """Like `small_disk`; with ext4, the file system is in a file on it."""
    if request.param == "tmpfs":
        yield small_disk
        return
    image, path = tmp_path / "image", tmp_path / "ext4"
    path.mkdir()
    for command in (
        ["truncate", "-s", "96M", str(image)],
        ["mkfs.ext4", "-q", "-m", "0", str(image)],
        ["mount", "-o", "loop", str(image), str(path)],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"no ext4 in a file here: {done.stderr.strip()}")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


class Ballast:
    """Uses the only name that a new data directory may contain: a directory on ext4, otherwise free to be a file."""

    def __init__(self, directory: Path) -> None:
        place = directory / "lost+found"
        self._path = place / "ballast" if place.is_dir() else place
        self._path.write_bytes(bytes(40_000_000))

    def take_the_rest(self) -> None:
        with self._path.open("ab", buffering=0) as file:
            for size in (1 << 20, 4096, 1):
                try:
                    while True:
                        file.write(bytes(size))
                except OSError:
                    continue

    def drop(self) -> None:
        self._path.unlink()


def test_a_start_on_a_disk_that_others_filled(start_broker: StartBroker, full_disk: Path) -> None:
    ballast = Ballast(full_disk)
    broker = start_broker(data=full_disk, config=NEVER_FLUSHED)
    create_topic(broker.bootstrap, "some", 3)
    create_topic(broker.bootstrap, "volatile", ottla_durability="memory")
    kept = acknowledged(write(broker.bootstrap, "some", [RECORD] * 20))
    assert len(kept) == 20
    broker.kill()
    ballast.take_the_rest()
    broker.start()
    assert {offset for offset, _ in read(broker.bootstrap, "some")} >= set(kept)
    assert write(broker.bootstrap, "some", [RECORD])[0].error == "KAFKA_STORAGE_ERROR"
    ballast.drop()
    for topic in ("some", "volatile"):
        assert wait_until_writable(broker.bootstrap, topic)[0].error is None


def test_a_start_on_a_disk_that_the_broker_filled(start_broker: StartBroker, full_disk: Path) -> None:
    ballast = Ballast(full_disk)
    broker = start_broker(data=full_disk, config=NEVER_FLUSHED)
    create_topic(broker.bootstrap, "filling")
    outcomes = fill(broker.bootstrap, "filling")
    assert outcomes[-1].error == "KAFKA_STORAGE_ERROR"
    for _ in range(3):
        broker.kill()
        ballast.take_the_rest()
        broker.start()
        assert {offset for offset, _ in read(broker.bootstrap, "filling")} >= set(acknowledged(outcomes))
    ballast.drop()
    assert wait_until_writable(broker.bootstrap, "filling")[0].error is None


def test_topics_can_be_deleted_on_a_disk_without_a_byte(start_broker: StartBroker, full_disk: Path) -> None:
    """Deleting a topic is how an operator frees space."""
    ballast = Ballast(full_disk)
    broker = start_broker(data=full_disk, config=SMALL_JOURNAL)
    for topic in ("filling", "waiting"):
        create_topic(broker.bootstrap, topic)
    assert fill(broker.bootstrap, "filling")[-1].error == "KAFKA_STORAGE_ERROR"
    ballast.take_the_rest()
    delete_topic(broker.bootstrap, "filling")
    assert wait_until_writable(broker.bootstrap, "waiting")[0].error is None
