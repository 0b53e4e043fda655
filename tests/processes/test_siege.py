"""Five minutes of faults of real processes: every kind once, and many at once; nothing is lost, duplicated or
reordered.

`make siege MINUTES=60` does the same for longer, also with five brokers, and with transactions, groups and write-ahead
logs beside the plain writers and readers. A run that fails keeps its history.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.conformance.coordination.servers import why_no_etcd

SEED = os.environ.get("OTTLA_SEED") or "3"
ABOUT_THE_STORE = ("store stopped", "cut from store", "cut from all", "one way to brokers", "kill", "long pause")


def run_siege(capsys: pytest.CaptureFixture[str], *arguments: str) -> None:
    command = [sys.executable, "-m", "tests.processes.siege", "--plain", "--seed", SEED, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    with capsys.disabled():
        print("\n" + done.stdout[done.stdout.find("\n\n") :])
    assert done.returncode == 0, done.stdout


@pytest.mark.timeout(1500)
def test_every_kind_of_fault(capsys: pytest.CaptureFixture[str]) -> None:
    run_siege(capsys, "--shape", "3,sqlite", "--minutes", "3.3")


@pytest.mark.timeout(1500)
@pytest.mark.skipif(bool(why_no_etcd()), reason=why_no_etcd())
def test_brokers_that_lose_their_store(capsys: pytest.CaptureFixture[str]) -> None:
    only = [word for kind in ABOUT_THE_STORE for word in ("--only", kind)]
    run_siege(capsys, "--shape", "3,etcd", "--minutes", "1.7", *only)
