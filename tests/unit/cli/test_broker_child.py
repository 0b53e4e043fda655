"""A broker of `ottla up` that fails: its reason is printed, and it is restarted with a growing backoff."""

from __future__ import annotations

import asyncio
import gc
import sys
from pathlib import Path
from typing import Any

import pytest

from ottla.cli.failures import CommandError
from ottla.cli.up.broker_child import PAUSE_MAX_S, PAUSE_S, BrokerChild

SAYS_WHY_AND_LINGERS = """
import os, time
os.write(2, b"ottla: there is no such address\\n")
os.close(1), os.close(2)
time.sleep(0.3)
"""


def test_the_reason_is_told_when_the_process_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise its pipes are closed by the garbage collector after the loop, with a traceback below the message."""
    ignored: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)

    async def live() -> None:
        child = BrokerChild(3, tmp_path / "config", [], keeps_port=False)
        child._command = [sys.executable, "-c", SAYS_WHY_AND_LINGERS]
        await child.run()
        with pytest.raises(CommandError, match="broker 3 cannot start: there is no such address"):
            await child.address
        assert child._process is not None
        assert child._process.returncode == 0

    asyncio.run(live())
    gc.collect()
    assert ignored == []


async def test_pauses_between_restarts_begin_with_the_shortest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = BrokerChild(3, tmp_path / "config", [], keeps_port=False)
    child.address.set_result("127.0.0.1:9092")
    pauses: list[float] = []

    async def die() -> str:
        return "killed by SIGKILL"

    async def sleep(pause_s: float) -> None:
        pauses.append(pause_s)
        if len(pauses) == 7:
            child.stop()

    monkeypatch.setattr(child, "_live", die)
    monkeypatch.setattr(child, "_sleep", sleep)
    await child.run()
    assert pauses == [PAUSE_S, 2 * PAUSE_S, 4 * PAUSE_S, 8 * PAUSE_S, 16 * PAUSE_S, PAUSE_MAX_S, PAUSE_MAX_S]
