"""`ottla up --secure`, `ottla users` and `ottla --config`, as a user runs them."""

from __future__ import annotations

import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

WAIT_S = 90.0
COMMAND = [sys.executable, "-m", "ottla"]


class Secured:
    """A cluster that `ottla up --secure` started."""

    def __init__(self, directory: Path, brokers: int) -> None:
        self.data = directory / "data"
        command = [*COMMAND, "up", "--secure", "--port", "0", "--data", str(self.data), "--brokers", str(brokers)]
        with (directory / "log").open("wb") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout is not None
        ready = self.process.stdout.readline()
        assert ready.startswith("ottla ready"), (directory / "log").read_text()
        self.bootstrap = ready.strip().partition("bootstrap=")[2]

    def run(self, *arguments: str, config: Path | None = None, stdin: str = "") -> subprocess.CompletedProcess[str]:
        chosen = [] if config is None else ["--config", str(config)]
        return subprocess.run(
            [*COMMAND, *chosen, *arguments, "--bootstrap", self.bootstrap],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(WAIT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture(params=[1, 2])
def secured(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Secured]:
    cluster = Secured(tmp_path, request.param)
    try:
        yield cluster
    finally:
        cluster.stop()


def test_a_secured_cluster_and_its_users(secured: Secured, tmp_path: Path) -> None:
    admin = secured.data / "client.properties"
    for path in (admin, *secured.data.glob("broker-*.properties"), secured.data / "security" / "ca.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert secured.run("topics", "list").returncode == 1
    assert secured.run("topics", "create", "orders", config=admin).returncode == 0
    assert secured.run("users", "set-password", "alice", config=admin, stdin="of alice\n").returncode == 0
    alice = tmp_path / "alice.properties"
    alice.write_text(
        f"security.protocol=SASL_SSL\nssl.truststore.location={secured.data / 'security' / 'ca.pem'}\n"
        "sasl.mechanism=SCRAM-SHA-256\nsasl.username=alice\nsasl.password=of alice\n"
    )
    listed = secured.run("topics", "list", config=alice)
    assert "orders" in listed.stdout, listed.stderr
    assert secured.run("users", "list", config=admin).stdout.splitlines() == [
        "alice  SCRAM-SHA-256, SCRAM-SHA-512",
        "broker  SCRAM-SHA-512",
    ]
    assert secured.run("users", "delete", "alice", config=admin).returncode == 0
    rejected = secured.run("topics", "list", config=alice)
    assert rejected.returncode == 1
    assert "rejected the login" in rejected.stderr
    assert "of alice" not in rejected.stderr
    opened = subprocess.run(
        [*COMMAND, "up", "--data", str(secured.data)], capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert opened.returncode == 1
    assert "add --secure" in opened.stderr
