"""A broker process of `ottla up`, which is restarted when it dies and reports why it ended."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from contextlib import suppress
from pathlib import Path

from ottla.cli.failures import CommandError
from ottla.cli.up.broker_runtime import READY

log = logging.getLogger("ottla.up")

PAUSE_S = 1.0
PAUSE_MAX_S = 30.0
LONG_LIFE_S = 10.0
SENTENCE = "ottla: "
"""The prefix of the error message that a failing command prints on stderr."""


class BrokerChild:
    """Supervises one broker process.

    `address` is set when the broker is first ready; it fails if the process ends before that.
    """

    def __init__(self, number: int, config: Path, arguments: list[str], *, keeps_port: bool) -> None:
        self._number = number
        self._keeps_port = keeps_port
        self._command = [sys.executable, "-m", "ottla", "broker", "--config", str(config), *arguments]
        self.address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._process: asyncio.subprocess.Process | None = None
        self._is_stopping = False
        self._pause: asyncio.Future[None] | None = None
        self._sentence = ""

    async def run(self) -> None:
        """Runs the broker and restarts it with backoff until `stop` is called, or until its first start fails."""
        loop = asyncio.get_running_loop()
        pause_s = PAUSE_S
        while not self._is_stopping:
            began_s = loop.time()
            reason = await self._live()
            if self._is_stopping:
                return
            if not self.address.done():
                self.address.set_exception(CommandError(f"broker {self._number} cannot start: {reason}"))
                return
            if loop.time() - began_s > LONG_LIFE_S:
                pause_s = PAUSE_S
            log.error(
                "broker %d ended: %s. The other brokers continue; it restarts in %.0f s", self._number, reason, pause_s
            )
            await self._sleep(pause_s)
            pause_s = min(PAUSE_MAX_S, pause_s * 2)

    async def _live(self) -> str:
        """Runs the process once and returns the reason why it ended."""
        self._sentence = ""
        try:
            process = await self._spawn()
        except OSError as failure:
            return f"could not start a process: {failure.strerror}"
        self._process = process
        assert process.stdout is not None
        assert process.stderr is not None
        if self._is_stopping:
            self._signal(signal.SIGTERM)
        await asyncio.gather(self._read_output(process.stdout), self._pass_on(process.stderr))
        # Wait for the process whatever it printed: an event loop that closes before its process leaves the pipes open.
        code = await process.wait()
        return self._sentence or _how(code)

    async def _spawn(self) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *self._command,
            *self._same_port(),
            "--ends-with-stdin",
            stdin=asyncio.subprocess.PIPE,  # never written to: it closes with this process, which stops the broker
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C in the terminal goes to the parent, which stops its brokers
        )

    def _same_port(self) -> list[str]:
        """Returns options that restart a broker on the free port it took first, because clients know that address."""
        if not self._keeps_port or not self.address.done():
            return []
        return ["--port", self.address.result().rpartition(":")[2]]

    async def _read_output(self, stream: asyncio.StreamReader) -> None:
        async for line in stream:
            text = line.decode(errors="replace").strip()
            if not text.startswith(READY):
                continue
            if self.address.done():
                log.warning("broker %d is serving again", self._number)
            else:
                self.address.set_result(text.removeprefix(READY))

    async def _pass_on(self, stream: asyncio.StreamReader) -> None:
        async for line in stream:
            text = line.decode(errors="replace")
            if text.startswith(SENTENCE):
                self._sentence = text.removeprefix(SENTENCE).strip()
            else:
                sys.stderr.write(f"[{self._number}] {text}")

    async def _sleep(self, pause_s: float) -> None:
        self._pause = asyncio.get_running_loop().create_future()
        await asyncio.wait([self._pause], timeout=pause_s)

    def stop(self) -> None:
        """Stops the broker with SIGTERM and does not restart it."""
        self._is_stopping = True
        if self._pause is not None and not self._pause.done():
            self._pause.set_result(None)
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kills the process with SIGKILL."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):  # the process has just ended, and its exit is not reported yet
                self._process.send_signal(number)


def _how(code: int) -> str:
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}; see its messages above"
