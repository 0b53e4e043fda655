"""A real Spark cluster on this machine, from pip's PySpark, that tests kill: a master and workers, each a JVM, whose
executors are JVMs too."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
import pyspark

from ottla.spark.jvm.fast_start import archive_options, lean_home
from ottla.spark.jvm.java import find_java

ROOT = Path(__file__).resolve().parents[2]
SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
MASTER, WORKER = "org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker"
EXECUTOR = "CoarseGrainedExecutorBackend"
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
READY_TIMEOUT_S = 120.0
POLL_S = 0.05

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.log.level": "WARN",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "600m",
    "spark.driver.extraJavaOptions": JAVA_OPTIONS,
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.executor.extraJavaOptions": JAVA_OPTIONS,
}
"""Settings of its drivers: small, and on this machine only."""


class StandaloneSpark:
    """A context manager. `master` is the URL for drivers."""

    def __init__(self, directory: Path, workers: int = 2, *, java_options: str = JAVA_OPTIONS) -> None:
        self._directory = directory
        self._count = workers
        home = lean_home({})
        options = f"{java_options} {archive_options(find_java(), home)}".strip()
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        self._environment = {
            **os.environ,
            "PYTHONPATH": path,  # executors import the tests' own sinks
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "192m",
            "SPARK_DAEMON_JAVA_OPTS": options,
            # A killed executor is always restarted. By default the tenth death ends the application.
            "SPARK_MASTER_OPTS": "-Dspark.deploy.maxExecutorRetries=-1",
        }
        if home is not None:  # workers and their executors start faster
            self._environment["SPARK_HOME"] = str(home)
        self._processes: list[subprocess.Popen[bytes]] = []
        self.master = ""

    def __enter__(self) -> Self:
        self._directory.mkdir(parents=True, exist_ok=True)
        try:
            self._start("master", MASTER, {})
            self.master = self._wait_for("master", r"Starting Spark master at (spark://\S+)")
            for number in range(self._count):
                work = self._directory / f"work-{number}"
                options = {"--cores": "1", "--memory": "800m", "--work-dir": str(work), "": self.master}
                self._start(f"worker-{number}", WORKER, options)
            for number in range(self._count):
                self._wait_for(f"worker-{number}", r"(Successfully registered) with master")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stops the workers first, with their child processes: a killed worker leaves its executors behind."""
        below = [child for process in self._processes for child in _children(process.pid)]
        for process in reversed(self._processes):
            process.kill()
            process.wait()
        for child in below:
            _kill(child)
        self._processes.clear()

    def executors(self) -> list[psutil.Process]:
        """The JVMs that run tasks now."""
        return [child for process in self._processes[1:] for child in _children(process.pid) if _is(child, EXECUTOR)]

    def task_processes(self) -> list[psutil.Process]:
        """The Python processes in which the tasks of the executors run."""
        below = [child for executor in self.executors() for child in _children(executor.pid)]
        return [child for child in below if _is(child, "pyspark") and not _is(child, EXECUTOR)]

    def _start(self, name: str, main: str, options: Mapping[str, str]) -> None:
        command = [str(SPARK_CLASS), main, "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        command += [text for pair in options.items() for text in pair if text]
        with (self._directory / f"{name}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    command, cwd=ROOT, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )
            )

    def _wait_for(self, name: str, pattern: str) -> str:
        path = self._directory / f"{name}.log"
        deadline = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < deadline:
            if found := re.search(pattern, path.read_text(errors="replace")):
                return found.group(1)
            if any(process.poll() is not None for process in self._processes):
                break
            time.sleep(POLL_S)
        raise TimeoutError(f"Spark's {name} did not start: {path.read_text(errors='replace')[-2000:]}")


def kill(process: psutil.Process) -> bool:
    """Sends SIGKILL; returns False if the process did not exist."""
    return _kill(process)


def _kill(process: psutil.Process) -> bool:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return False
    return True


def _children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _is(process: psutil.Process, name: str) -> bool:
    try:
        return any(name in part for part in process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return False
