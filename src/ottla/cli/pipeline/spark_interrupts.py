"""Handles Ctrl-C while Spark runs.

An exception in the middle of a call to the JVM breaks the connection: Py4J prints stack traces, and stopping Spark may
hang. The handler therefore never raises there. Before the first row there is nothing to stop in order, so the process
ends at once. Later the handler only sets a flag, and the loops that wait for queries raise KeyboardInterrupt.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from ottla.cli.failures import INTERRUPTED

PATIENCE_S = 20.0
"""How long an orderly stop may take before the process is ended anyway."""


class InterruptHandler:
    """The interrupt state of the process. `installed` makes it the handler of SIGINT."""

    def __init__(self) -> None:
        self.ends_if_stuck = True
        """Whether an orderly stop has a timeout. A prompt has none and ends on a second Ctrl-C."""
        self._may_raise = False
        self._orderly: list[Callable[[], bool]] = []
        self._is_wanted = False
        self._is_installed = False

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Installs the handler of SIGINT."""
        if self._is_installed or threading.current_thread() is not threading.main_thread():
            yield
            return
        logging.getLogger("py4j").setLevel(logging.CRITICAL)  # it logs the stack trace of each connection that ends
        before = signal.signal(signal.SIGINT, self._on_signal)
        self._is_installed = True
        try:
            yield
        finally:
            self._is_installed = self._is_wanted = False
            signal.signal(signal.SIGINT, before)

    @contextlib.contextmanager
    def orderly(self, when: Callable[[], bool] = lambda: True) -> Iterator[None]:
        """If `when` holds, delays an interrupt until the end of the block. A second interrupt ends the process."""
        self._orderly.append(when)
        try:
            yield
        finally:
            self._orderly.remove(when)
            self.check()

    @contextlib.contextmanager
    def raising(self) -> Iterator[None]:
        """Lets an interrupt raise at once in the block, which must not call the JVM."""
        before, self._may_raise = self._may_raise, True
        try:
            yield
        finally:
            self._may_raise = before

    def check(self) -> None:
        """Raises KeyboardInterrupt if an interrupt is pending."""
        if self._is_wanted:
            self._is_wanted = False
            raise KeyboardInterrupt

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._may_raise:
            raise KeyboardInterrupt
        if self._is_wanted or not any(when() for when in self._orderly):
            end_now()
        self._is_wanted = True
        if not self.ends_if_stuck:
            return
        watchdog = threading.Timer(PATIENCE_S, self._end_if_stuck)
        watchdog.daemon = True
        watchdog.start()

    def _end_if_stuck(self) -> None:
        if self._is_wanted:
            end_now()


interrupts = InterruptHandler()


def end_now() -> None:
    """Ends the JVM and this process. Nothing is lost: a query continues after its last complete batch."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    with contextlib.suppress(OSError, ValueError):
        os.write(2, b"ottla: interrupted\n")
    with contextlib.suppress(Exception):  # whatever state Spark is in, this process ends
        _kill_jvm()
    os._exit(INTERRUPTED)


def _kill_jvm() -> None:
    context = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    process = getattr(getattr(context, "_gateway", None), "proc", None)
    if process is None:
        return  # a JVM that is just starting ends when its stdin closes
    process.kill()
    process.wait(timeout=5)
    active = getattr(context, "_active_spark_context", None)
    scratch = getattr(active, "_temp_dir", None)
    if scratch is not None:
        shutil.rmtree(Path(scratch).parent, ignore_errors=True)
