"""`ottla up`: a cluster on one machine, with a process for each broker.

All files are in one directory, so that each broker can also be started by hand (`ottla broker --config`):

    DATA/coordination          the coordination store
    DATA/broker-1.properties   the settings of a broker
    DATA/broker-1/             the data of that broker

If a broker fails at its first start, the whole cluster stops. A broker that dies later is restarted, and the others
continue.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ottla.broker.adapters.lock import DirectoryInUseError, DirectoryLock
from ottla.cli.client_security import client_security
from ottla.cli.failures import CommandError
from ottla.cli.up.broker_child import BrokerChild
from ottla.cli.up.broker_runtime import say_ready, stop_on_signals
from ottla.cli.up.data_layout import broker_directory, broker_file, coordination_directory
from ottla.cli.up.port_settings import METRICS_PORT, WAL_PORT, port_of
from ottla.protocol.model.broker_config import parse_broker_config
from ottla.protocol.model.errors import Refused
from ottla.protocol.model.group_keys import OFFSETS_REPLICATION_FACTOR

if TYPE_CHECKING:
    from ottla.broker.app import BrokerSettings

log = logging.getLogger("ottla.up")

REPLICAS = 3
PORT_MAX = 65535
STOP_TIMEOUT_S = 40.0
LOOK_AGAIN_S = 0.02


class Cluster:
    """The brokers of a cluster on one machine."""

    def __init__(self, settings: BrokerSettings, count: int, log_level: str) -> None:
        data = Path(settings.data_dir).absolute()
        if settings.port and settings.port + count - 1 > PORT_MAX:
            raise CommandError(
                f"there are not enough ports from {settings.port} on for {count} brokers; choose a lower --port"
            )
        for name in (METRICS_PORT, WAL_PORT):
            if port_of(settings, name, count) > PORT_MAX:
                raise CommandError(
                    f"there are not enough ports from {name} on for {count} brokers; choose a lower {name}"
                )
        if settings.listeners.others:
            raise CommandError("a file with several listeners configures a single broker; start it with `ottla broker`")
        self._settings = settings
        refused = parse_broker_config(settings.properties)
        if isinstance(refused, Refused):
            raise CommandError(refused.message or "invalid setting")
        self._lock, self._files = _locked_files(settings, data, count)
        self._arguments = ["--log-level", log_level, "--disk", settings.disk]
        if settings.fault_file is not None:
            self._arguments += ["--fault-file", settings.fault_file]
        log.warning(
            "all %d brokers are on this machine, so replicas of a partition may share it "
            "(ottla.host.shared=true); data that this machine loses is lost",
            count,
        )
        log.info("data in %s", data)

    async def run(self) -> None:
        """Runs until a signal. Prints the bootstrap line when all brokers are ready and know one another."""
        stopped = stop_on_signals()
        takes_free_port = not self._settings.port and self._settings.advertised_port is None
        children = [
            BrokerChild(number, path, self._arguments, keeps_port=takes_free_port)
            for number, path in enumerate(self._files, 1)
        ]
        lives = [asyncio.ensure_future(child.run()) for child in children]
        starting = asyncio.ensure_future(self._all_ready(children))
        try:
            either: list[asyncio.Future[Any]] = [starting, stopped]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not stopped.done():
                say_ready(",".join(starting.result()))
            log.info("stopping on %s", await stopped)
        finally:
            starting.cancel()
            for child in children:
                child.stop()
            _, still_there = await asyncio.wait(lives, timeout=STOP_TIMEOUT_S)
            for child in children if still_there else ():
                child.kill()
            await asyncio.gather(*lives, starting, return_exceptions=True)
            self._lock.release()
        log.info("stopped")

    async def _all_ready(self, children: list[BrokerChild]) -> list[str]:
        """Waits until all brokers are ready and returns their addresses. Raises FailedError if one of them ends."""
        addresses = await asyncio.gather(*(child.address for child in children))
        await asyncio.gather(*(_until_it_knows_all(address, len(children)) for address in addresses))
        return addresses


async def _until_it_knows_all(address: str, count: int) -> None:
    """Waits until a broker knows `count` brokers, so that it does not reject a topic for lack of brokers."""
    from ottla.client import Admin, ClientError

    while True:
        try:
            async with Admin(address, client_id="ottla-up", security=client_security()) as admin:
                while True:
                    cluster = await admin.describe_cluster()
                    if len(cluster.brokers) >= count and cluster.controller_id >= 0:
                        return
                    await asyncio.sleep(LOOK_AGAIN_S)
        except ClientError as failure:  # the broker may just have died; then it is restarted
            log.debug("broker at %s: %s", address, failure)
            await asyncio.sleep(LOOK_AGAIN_S * 10)


def _locked_files(settings: BrokerSettings, data: Path, count: int) -> tuple[DirectoryLock, list[Path]]:
    """Locks the directory and writes a configuration file for each broker.

    Writes nothing if another process uses the directory. A broker may also run by itself with one of these files. Then
    its own directory is locked, and the one above is not.
    """
    try:
        with ExitStack() as locks:
            lock = DirectoryLock(str(data))
            locks.callback(lock.release)
            numbers = range(1, count + 1)
            with ExitStack() as of_brokers:
                for directory in (broker_directory(data, number) for number in numbers):
                    if directory.exists():
                        of_brokers.callback(DirectoryLock(str(directory)).release)
                files = [broker_file(data, number) for number in numbers]
                for number, path in zip(numbers, files, strict=True):
                    _replace_file(path, _properties_text(_values(settings, data, number, count)))
            locks.pop_all()
            return lock, files
    except DirectoryInUseError as failure:
        raise CommandError(str(failure)) from failure
    except OSError as failure:
        reason = (failure.strerror or str(failure)).lower()
        raise CommandError(
            f"the data directory {data} cannot be used: {failure.filename or data}: {reason}; choose another one with "
            "--data"
        ) from failure


def _replace_file(path: Path, text: str) -> None:
    """Replaces a file atomically, so that a restarted broker never reads a partial file."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.touch(mode=0o600)  # it may have passwords
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


def _values(settings: BrokerSettings, data: Path, number: int, count: int) -> dict[str, str]:
    listener_name, protocol = settings.listeners.client[:2]

    def listener(host: str, first_port: int | None) -> str:
        port = first_port + number - 1 if first_port else 0
        return f"{listener_name}://[{host}]:{port}" if ":" in host else f"{listener_name}://{host}:{port}"

    values = {
        "default.replication.factor": str(min(count, REPLICAS)),
        OFFSETS_REPLICATION_FACTOR: str(min(count, REPLICAS)),
        **settings.properties,
        "node.id": str(number),
        "listeners": listener(settings.host, settings.port),
        "listener.security.protocol.map": f"{listener_name}:{protocol}",
        "log.dirs": str(broker_directory(data, number)),
        "ottla.coordination": f"sqlite:{coordination_directory(data)}",
        "ottla.host.shared": "true",
    }
    for name in (METRICS_PORT, WAL_PORT):
        if name in settings.properties:
            values[name] = str(port_of(settings, name, number))
    if settings.advertised_host is not None:
        values["advertised.listeners"] = listener(settings.advertised_host, settings.advertised_port)
    if settings.storage is not None:
        values["ottla.durability"] = settings.storage.value
    return values


def _properties_text(values: Mapping[str, str]) -> str:
    escaped = {name: value.replace("\\", "\\\\").replace("\n", "\\n") for name, value in sorted(values.items())}
    lines = [f"{name}={value}\n" for name, value in escaped.items()]
    return "# Written by `ottla up` at each start.\n" + "".join(lines)
