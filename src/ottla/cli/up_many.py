"""`ottla up --brokers N`: a cluster on one machine, each broker a process of its own.

Everything is under one directory, so that any of the brokers can also be started by hand:

    DATA/coordination          where they meet
    DATA/broker-1.properties   its settings
    DATA/broker-1/             its data
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ottla.cli.failures import FailedError

if TYPE_CHECKING:
    from ottla.app import BrokerSettings

log = logging.getLogger("ottla.up")

READY = "ottla ready bootstrap="
RESTART_S = 1.0
SHORT_LIFE_S = 10.0
SHORT_LIVES_MAX = 3
STOP_TIMEOUT_S = 40.0


def write_settings(settings: BrokerSettings, count: int) -> list[Path]:
    """A configuration file for each broker."""
    directory = Path(settings.data_dir)
    directory.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    for number in range(1, count + 1):
        port = settings.port + number - 1 if settings.port else 0
        values = {
            "default.replication.factor": str(min(count, 3)),
            **settings.properties,
            "node.id": str(number),
            "listeners": f"PLAINTEXT://{settings.host}:{port}",
            "log.dirs": str(directory / f"broker-{number}"),
            "ottla.coordination": f"sqlite:{directory / 'coordination'}",
            "ottla.host.shared": "true",
        }
        if settings.storage is not None:
            values["ottla.durability"] = settings.storage.value
        path = directory / f"broker-{number}.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in sorted(values.items())))
        files.append(path)
    return files


async def serve_many(files: list[Path], log_level: str, stopped: asyncio.Future[str]) -> str:
    """Runs the brokers until `stopped`; the bootstrap line is printed when all of them serve."""
    brokers = [Child(number, path, log_level) for number, path in enumerate(files, 1)]
    tasks = [asyncio.ensure_future(broker.run()) for broker in brokers]
    addresses = asyncio.ensure_future(asyncio.gather(*(broker.address for broker in brokers)))
    ends: list[asyncio.Future[Any]] = [stopped, *tasks]
    try:
        await asyncio.wait([addresses, *ends], return_when=asyncio.FIRST_COMPLETED)
        if addresses.done():
            print(f"{READY}{','.join(addresses.result())}", flush=True)
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
        reason = await stopped
    finally:
        addresses.cancel()
        for broker in brokers:
            broker.stop()
        await asyncio.wait(tasks, timeout=STOP_TIMEOUT_S)
        for broker in brokers:
            broker.kill()
        await asyncio.gather(*tasks, return_exceptions=True)
    return reason


class Child:
    """One broker. Started again when it dies, until it dies young too often."""

    def __init__(self, number: int, config: Path, log_level: str) -> None:
        self._number = number
        self._command = [sys.executable, "-m", "ottla", "up", "--config", str(config), "--log-level", log_level]
        self.address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._process: asyncio.subprocess.Process | None = None
        self._is_stopping = False

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        short_lives = 0
        while not self._is_stopping:
            began_s = loop.time()
            code = await self._live()
            if self._is_stopping:
                return
            short_lives = short_lives + 1 if loop.time() - began_s < SHORT_LIFE_S else 0
            if short_lives >= SHORT_LIVES_MAX or not self.address.done():
                raise FailedError(f"broker {self._number} ended with {code}: see its messages above")
            log.warning("broker %d ended with %d, it is started again", self._number, code)
            await asyncio.sleep(RESTART_S)

    async def _live(self) -> int:
        self._process = process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # an interrupt from the terminal is for the parent, which stops its brokers
        )
        assert process.stdout is not None
        assert process.stderr is not None
        await asyncio.gather(self._read_output(process.stdout), self._pass_on(process.stderr))
        return await process.wait()

    async def _read_output(self, stream: asyncio.StreamReader) -> None:
        async for line in stream:
            text = line.decode(errors="replace").strip()
            if text.startswith(READY) and not self.address.done():
                self.address.set_result(text.removeprefix(READY))

    async def _pass_on(self, stream: asyncio.StreamReader) -> None:
        async for line in stream:
            sys.stderr.write(f"[{self._number}] {line.decode(errors='replace')}")

    def stop(self) -> None:
        self._is_stopping = True
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            os.kill(self._process.pid, number)
