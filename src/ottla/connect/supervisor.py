"""Runs each connector in a process of its own and restarts processes that die, with exponential backoff.

A failure that needs an operator stops one connector; the others continue. When the supervisor ends, even if it is
killed, its connectors end too, because they reach the end of their stdin.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence

from ottla.client.errors import BrokerRefusedError, ClientError
from ottla.connect.configuration import ConnectorConfig
from ottla.connect.status import HEARTBEAT_S, LAST_WORD_S, Status, StatusTopic
from ottla.net.backoff import Backoff

NEEDS_HELP = 78
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 60.0
GOOD_AFTER_S = 10.0
"""A process that has run this long resets the backoff."""
STOP_TIMEOUT_S = 30.0
_LINE_BYTES_MAX = 1 << 20

Say = Callable[[str], None]


def pause_after(ran_s: float, backoff: Backoff) -> float:
    """Returns the pause before the restart of a process that ran for `ran_s`."""
    if ran_s >= GOOD_AFTER_S:
        backoff.reset()
    return backoff.next_s()


class ConnectorProcess:
    """One connector: its process and its status."""

    def __init__(self, config: ConnectorConfig, statuses: StatusTopic, say: Say) -> None:
        self._config = config
        self._statuses = statuses
        self._say = say
        self._backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        self._stopping = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None
        self._news = asyncio.Event()
        self._has_told = False
        now_ms = _now_ms()
        self.status = Status(config.name, config.kind, "starting", socket.gethostname(), None, now_ms, now_ms)

    async def run(self) -> None:
        """Runs the connector until it is stopped, ends by itself, or needs an operator."""
        beating = asyncio.create_task(self._beat())
        try:
            while not self._stopping.is_set():
                begun_s = time.monotonic()
                code = await self._run_once()
                if self._stopping.is_set() or code == 0:
                    self._change("stopped")
                    return
                if code == NEEDS_HELP:
                    self._change("failed")
                    self._say(f"{self._config.name}: {self.status.error}")
                    return
                await self._pause(code, time.monotonic() - begun_s)
            self._change("stopped")
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)
            if not self._has_told:  # do not wait again for brokers that are unreachable
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._write(), LAST_WORD_S)

    async def _pause(self, code: int, ran_s: float) -> None:
        pause_s = pause_after(ran_s, self._backoff)
        self.status.restarts += 1
        if self.status.state not in ("restarting", "waiting"):
            self.status.error = f"the process ended with code {code}"
        self._change("restarting")
        self._say(f"{self._config.name}: {self.status.error}. Restarting in {pause_s:g} s")
        self._news.set()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), pause_s)

    async def _run_once(self) -> int:
        self._process = process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "ottla.connect.worker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_LINE_BYTES_MAX,
            start_new_session=True,  # the supervisor handles Ctrl-C and stops its workers in order
        )
        assert process.stdin is not None
        assert process.stdout is not None
        self.status.pid = process.pid
        self._change("starting")
        process.stdin.write(json.dumps(self._config.to_json()).encode() + b"\n")
        if self._stopping.is_set():
            process.terminate()
        async for line in process.stdout:
            self._on_report(line)
        code = await process.wait()
        self._process = None
        self.status.pid = None
        return code

    def _on_report(self, line: bytes) -> None:
        try:
            facts = json.loads(line)
            state = facts.pop("state")
        except (ValueError, KeyError, AttributeError):
            return
        error = facts.pop("error", None)
        if error is not None:
            self.status.error = error
        else:
            self.status.facts = facts
        if state != self.status.state:
            self._change(state)
            if state == "running":
                self.status.error = None
                self._say(f"{self._config.name}: running")

    async def stop(self) -> None:
        """Terminates the process, and kills it if it has not ended after `STOP_TIMEOUT_S`."""
        self._stopping.set()
        process = self._process
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
            except TimeoutError:
                process.kill()

    def _change(self, state: str) -> None:
        if self.status.state != state:
            self.status.state = state
            self.status.since_ms = _now_ms()

    async def _beat(self) -> None:
        while True:
            self._news.clear()
            await self._write()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), HEARTBEAT_S if self.status.state == "running" else 1.0)

    async def _write(self) -> None:
        self.status.at_ms = _now_ms()
        try:
            await self._statuses.write(self.status)
        except (ClientError, OSError) as failure:  # without a broker, nobody can read the status either
            if not self._statuses.is_started and not self._has_told:
                self._has_told = True
                self._say(
                    f"{self._config.name}: `ottla connect status` does not show it, because its status could "
                    f"not be written to {self._statuses.bootstrap} (--bootstrap): {failure}"
                )


async def supervise(configs: Sequence[ConnectorConfig], say: Say) -> list[Status]:
    """Runs connectors until all have ended or a SIGINT or SIGTERM arrives. Returns their final statuses."""
    statuses = StatusTopic(configs[0].bootstrap)
    if any(config.needs_bootstrap for config in configs):
        # Brokers may refuse for now, for example while there are too few of them to create the topic. The connectors
        # run anyway.
        with contextlib.suppress(BrokerRefusedError):
            await statuses.start()
    try:
        every = [ConnectorProcess(config, statuses, say) for config in configs]
        loop = asyncio.get_running_loop()
        stops: set[asyncio.Task[None]] = set()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, lambda: stops.update(asyncio.create_task(each.stop()) for each in every))
        await asyncio.gather(*(each.run() for each in every))
        return [each.status for each in every]
    finally:
        with contextlib.suppress(ClientError):
            await statuses.close()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def shown_pid(status: Status) -> str:
    """Formats the process as `host:pid`; empty if no process runs."""
    return "" if status.pid is None else f"{status.host}:{status.pid}"
