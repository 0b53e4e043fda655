"""Running targets: brokers of Ottla, of Apache Kafka, or brokers that were running already."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ottla import __version__
from ottla.bench.leaders import any_broker, wait_until_in_sync
from ottla.bench.processes import resident_bytes
from ottla.bench.suite.kafka_cluster import KafkaCluster
from ottla.bench.suite.kafka_jars import kafka_version
from ottla.bench.suite.matrix import TargetPlan
from ottla.bench.suite.settings import Configuration, count
from ottla.bench.suite.target_support import topic_configs
from ottla.testing.broker_process import BrokerProcess
from ottla.testing.cluster_processes import ClusterProcesses

READY_S = 120.0
IN_SYNC_PATIENCE_S = 60.0
QUIET = ("--log-level", "warning")


class RunningTarget(ABC):
    """The brokers of one target."""

    def __init__(self, plan: TargetPlan, directory: Path) -> None:
        self.plan = plan
        self.directory = directory
        self.started_at_s = time.monotonic()

    @property
    @abstractmethod
    def bootstrap(self) -> str:
        """The addresses of the brokers, separated by commas."""
        ...

    @abstractmethod
    def start(self) -> None:
        """Starts the brokers. Sets `started_at_s` to when their processes were started."""

    @abstractmethod
    def end(self) -> None:
        """Ends the brokers that this target has started."""
        ...

    @abstractmethod
    def pids(self) -> tuple[int, ...]:
        """The processes of the brokers, if they run on this machine."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """The version and settings, for the report."""

    def create_topic(self, name: str, configuration: Configuration) -> None:
        """Creates a topic and waits until every replica is in sync."""
        replication = count(configuration, "topic.replication")
        configs = topic_configs(self.plan, configuration)
        with any_broker(self.bootstrap) as caller:
            caller.create_topics([name], count(configuration, "topic.partitions"), configs, replicas=replication)
        wait_until_in_sync(self.bootstrap, name, replication)

    def delete_topic(self, name: str) -> None:
        """Deletes a topic of the benchmark."""
        with any_broker(self.bootstrap) as caller:
            caller.delete_topics([name])

    def idle_memory_mb(self) -> float:
        """Returns the resident memory of the largest broker; 0 if it is unknown."""
        pids = self.pids()
        return max(map(resident_bytes, pids)) / 1e6 if pids else 0.0

    def drop_page_cache(self) -> None:
        """Drops the written-back pages of the brokers' files from the page cache, so that reads go to the disk."""
        os.sync()
        drop_page_cache_of(self.directory)


def drop_page_cache_of(directory: Path) -> None:
    """Drops all regular files below a directory from the page cache.

    Ignores files that brokers remove or rename meanwhile. Other kinds of files have no pages: a named pipe rejects the
    advice, and opening one can block.
    """
    for parent, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                drop_pages_of(os.path.join(parent, name))


def drop_pages_of(path: str) -> None:
    """Drops a regular file's clean pages from the page cache."""
    if not stat.S_ISREG(os.lstat(path).st_mode):
        return
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class OttlaTarget(RunningTarget):
    """Brokers of Ottla."""

    def __init__(self, plan: TargetPlan, directory: Path) -> None:
        super().__init__(plan, directory)
        directory.mkdir(parents=True, exist_ok=True)
        if plan.brokers == 1:
            self._brokers = [
                BrokerProcess(directory / "broker-1", arguments=QUIET, config=plan.config, ready_timeout_s=READY_S)
            ]
            self._start = self._brokers[0].start
        else:
            cluster = ClusterProcesses(
                directory, plan.brokers, config=plan.config, arguments=QUIET, ready_timeout_s=READY_S
            )
            self._brokers, self._start = cluster.brokers, cluster.start  # type: ignore[assignment] # both start all

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self._brokers)

    def start(self) -> None:
        self.started_at_s = time.monotonic()
        try:
            self._start()
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """Kills the brokers. Nothing needs to be flushed, because the data is removed next."""
        for broker in self._brokers:
            if broker.running:
                broker.kill()

    def pids(self) -> tuple[int, ...]:
        return tuple(broker.pid for broker in self._brokers if broker.running)

    def facts(self) -> dict[str, Any]:
        python = sys.version.split()[0]
        return {"software": f"Ottla {__version__}, Python {python}", "settings": dict(self.plan.config)}


class KafkaTarget(RunningTarget):
    """Brokers of Apache Kafka."""

    def __init__(self, plan: TargetPlan, directory: Path) -> None:
        super().__init__(plan, directory)
        self._cluster = KafkaCluster(directory, plan.brokers, heap_mb=plan.heap_mb, config=plan.config)

    @property
    def bootstrap(self) -> str:
        return self._cluster.bootstrap

    def start(self) -> None:
        try:
            self._cluster.format()
            self.started_at_s = time.monotonic()
            self._cluster.start()
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        self._cluster.kill()

    def pids(self) -> tuple[int, ...]:
        return self._cluster.pids

    def facts(self) -> dict[str, Any]:
        return {
            "software": f"Apache Kafka {kafka_version()}, KRaft",
            "jvm": " ".join(self._cluster.jvm_options),
            "settings": _without_places(self._cluster.settings[0]),
        }


class BootstrapTarget(RunningTarget):
    """Brokers that somebody else runs. Their resource usage is unknown."""

    @property
    def bootstrap(self) -> str:
        return self.plan.bootstrap

    def start(self) -> None:
        with any_broker(self.bootstrap):
            pass

    def end(self) -> None:
        pass

    def pids(self) -> tuple[int, ...]:
        return ()

    def facts(self) -> dict[str, Any]:
        return {"software": f"brokers at {self.plan.bootstrap}", "settings": {}}


KINDS: Mapping[str, type[RunningTarget]] = {"ottla": OttlaTarget, "kafka": KafkaTarget, "bootstrap": BootstrapTarget}


def make_target(plan: TargetPlan, directory: Path) -> RunningTarget:
    """Returns a target that is not started yet."""
    return KINDS[plan.kind](plan, directory)


def _without_places(settings: Mapping[str, str]) -> dict[str, str]:
    """Removes ports and directories, which mean nothing to a reader."""
    places = ("log.dirs", "listeners", "advertised.listeners", "controller.quorum.voters")
    return {name: value for name, value in settings.items() if name not in places}
