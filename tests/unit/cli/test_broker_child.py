"""A broker of `ottla up` that cannot start: its reason is told, and nothing of its process is left."""

from __future__ import annotations

import asyncio
import gc
import sys
from pathlib import Path
from typing import Any

import pytest

from ottla.cli.failures import CommandError
from ottla.cli.up.broker_child import BrokerChild

SAYS_WHY_AND_LINGERS = """
import os, time
os.write(2, b"ottla: there is no such address\\n")
os.close(1), os.close(2)
time.sleep(0.3)
"""


def test_the_reason_is_told_when_the_process_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its pipes are closed by the collector, after the loop: a traceback below the sentence."""
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
