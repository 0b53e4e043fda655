"""A broker on a real file system that loses the power: what was acknowledged is on the disk, and so are its names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.conftest import StartBroker
from tests.processes.traffic import acknowledged, create_topic, read, write
from tests.support.real_power_cut import CannotMountError, PowerlessDisk

ROUNDS = 3
SMALL_JOURNAL = {
    "ottla.journal.bytes": "8388608",
    "ottla.journal.file.bytes": "1048576",
    "ottla.flush.interval.ms": "100",
}
"""The journal is overwritten in each round, so that the segments and their names have to be durable by themselves."""
VALUES = [b"%06d" % number * 2700 for number in range(700)]
"""11 MB"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[PowerlessDisk]:
    try:
        disk = PowerlessDisk(tmp_path / "power", size_bytes=1 << 30)
    except CannotMountError as why:
        pytest.skip(f"needs the right to mount an ext4 file system: {why}")
    yield disk
    disk.close()


def test_acknowledged_records_survive_power_cuts(start_broker: StartBroker, disk: PowerlessDisk) -> None:
    kept: dict[str, list[int]] = {}
    for number in range(ROUNDS):
        broker = start_broker(data=disk.path / "data", config=SMALL_JOURNAL)
        check(broker.bootstrap, kept)
        name = f"topic-{number}"
        create_topic(broker.bootstrap, name, segment_bytes=str(1 << 20))
        for each in [*kept, name]:
            offsets = acknowledged(write(broker.bootstrap, each, VALUES))
            assert len(offsets) == len(VALUES)
            kept.setdefault(each, []).extend(offsets)
        broker.kill()
        disk.cut_power()
    check(start_broker(data=disk.path / "data", config=SMALL_JOURNAL).bootstrap, kept)


def check(bootstrap: str, kept: dict[str, list[int]]) -> None:
    for name, offsets in kept.items():
        assert [offset for offset, _ in read(bootstrap, name)] == offsets, name
