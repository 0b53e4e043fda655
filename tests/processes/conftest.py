"""Broker processes for one test each. At the end of a test its processes are killed and its file systems unmounted."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ottla.testing.broker_process import BrokerProcess

StartBroker = Callable[..., BrokerProcess]


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[StartBroker]:
    """Starts a broker on `tmp_path/data`, or on the given directory."""
    started: list[BrokerProcess] = []

    def start(
        *,
        data: Path | None = None,
        config: dict[str, str] | None = None,
        arguments: tuple[str, ...] = (),
    ) -> BrokerProcess:
        broker = BrokerProcess(data or tmp_path / "data", config=config, arguments=arguments)
        started.append(broker)
        return broker.start()

    yield start
    for broker in started:
        if broker.running:
            broker.kill()
        assert "Traceback" not in broker.log(), broker.log()[-8000:]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mounts a file system of 96 MB."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system for this test")
    path = tmp_path / "small-disk"
    path.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=96m", "ottla-test", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip(f"a small file system could not be mounted here: {done.stderr.strip()}")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)
