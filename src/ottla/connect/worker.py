"""The process of one connector.

The supervisor writes the configuration to stdin and reads reports, one JSON object per line, from stdout. The end of
stdin means that the supervisor has ended, so this process ends too.

Exit codes:
0   it was stopped, or reached the end of its input
75  it failed and should be restarted
78  it needs an operator
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import traceback
from collections.abc import Coroutine
from typing import Any

from ottla.client.errors import ClientError
from ottla.connect.configuration import ConnectorConfig
from ottla.connect.contract import Follower, Source
from ottla.connect.failures import ConnectorError, NeedsHelpError
from ottla.connect.sink_run import run_sink
from ottla.connect.source_run import run_source

TRY_AGAIN = 75
NEEDS_HELP = 78
REPORT_EVERY_S = 1.0
_STDIN = 0


class Reports:
    """Writes reports to stdout: at most one a second, and always the last one."""

    def __init__(self) -> None:
        self._last: dict[str, Any] = {}
        self._next_s = 0.0

    def progress(self, facts: dict[str, Any]) -> None:
        self._last = facts
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._next_s:
            self._next_s = now_s + REPORT_EVERY_S
            self.flush()

    def flush(self) -> None:
        """Writes the latest report at once, even if one was written within the last second."""
        self._write({"state": "running", **self._last})

    def waiting(self, reason: str) -> None:
        self._write({"state": "waiting", "error": reason})

    def failed(self, reason: str, *, needs_help: bool) -> None:
        """Reports a failure: final if the operator must help, otherwise one that a restart may cure."""
        self._write({"state": "failed" if needs_help else "restarting", "error": reason})

    def _write(self, facts: dict[str, Any]) -> None:
        try:
            print(json.dumps(facts, default=str), flush=True)
        except BrokenPipeError:
            raise SystemExit(TRY_AGAIN) from None  # the supervisor has ended


async def run(config: ConnectorConfig, reports: Reports) -> None:
    """Builds the connector and runs it until SIGTERM, SIGINT or the end of the supervisor."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    _watch_supervisor(loop, stopping)
    connector = config.build()
    if isinstance(connector, Follower):
        await connector.follow(stopping, reports)
    elif isinstance(connector, Source):
        await run_source(config.name, config.bootstrap, connector, stopping, reports.progress)
    else:
        await run_sink(config, connector, stopping, reports.progress)
    reports.flush()


def _watch_supervisor(loop: asyncio.AbstractEventLoop, stopping: asyncio.Event) -> None:
    """Stops the connector at the end of stdin."""

    def on_readable() -> None:
        if not os.read(_STDIN, 4096):
            loop.remove_reader(_STDIN)
            stopping.set()

    loop.add_reader(_STDIN, on_readable)


def _read_config() -> ConnectorConfig:
    """Reads the first line of stdin without Python's buffering, because the event loop watches the bytes that
    follow."""
    line = bytearray()
    while not line.endswith(b"\n"):
        more = os.read(_STDIN, 1)
        if not more:
            raise SystemExit(TRY_AGAIN)
        line += more
    return ConnectorConfig(**json.loads(line))


def main() -> int:
    """Runs one connector until it stops. Returns the exit code: 0, NEEDS_HELP, or TRY_AGAIN."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(message)s")
    config = _read_config()
    reports = Reports()
    try:
        _run_on_loop(run(config, reports))
    except (NeedsHelpError, ConnectorError, ClientError, OSError) as failure:
        needs_help = isinstance(failure, NeedsHelpError)
        reports.failed(str(failure) or type(failure).__name__, needs_help=needs_help)
        return NEEDS_HELP if needs_help else TRY_AGAIN
    except Exception as fault:
        traceback.print_exc()
        reports.failed(f"internal error, please report it: {type(fault).__name__}: {fault}", needs_help=False)
        return TRY_AGAIN
    return 0


def _run_on_loop(work: Coroutine[Any, Any, None]) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(work)
        return
    uvloop.run(work)


if __name__ == "__main__":
    sys.exit(main())
