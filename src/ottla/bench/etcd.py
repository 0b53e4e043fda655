"""A single-member etcd for a measurement, from PATH or from where scripts/prepare_coordination.py puts it."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ottla.testing.ports import reserve_ports

FETCHED = Path(".cache/etcd/usr/bin/etcd")
READY_S = 30.0


def etcd_program() -> str | None:
    """Returns the path of etcd, or None if there is none."""
    return shutil.which("etcd") or (str(FETCHED) if FETCHED.exists() else None)


@contextmanager
def running_etcd(program: str, directory: Path) -> Iterator[str]:
    """Runs etcd and yields its address in the format of the setting `ottla.coordination`."""
    directory.mkdir(parents=True, exist_ok=True)
    client_port, peer_port = reserve_ports(2)
    client, peer = f"http://127.0.0.1:{client_port}", f"http://127.0.0.1:{peer_port}"
    command = [
        program, "--name", "bench", "--data-dir", str(directory / "data"),
        "--listen-client-urls", client, "--advertise-client-urls", client,
        "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"bench={peer}",
    ]  # fmt: skip
    with (directory / "log.txt").open("ab") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        _wait_for(client_port, process)
        yield f"etcd:127.0.0.1:{client_port}"
    finally:
        process.kill()
        process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError("etcd did not start")
