"""A pytest plugin that records which functions of the package each test calls, and how long it takes.

It traces calls only, not lines, which costs about as much again as the test itself. Compiled functions are not seen.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path
from types import CodeType, FrameType

import pytest

from tests.mutation.call_record import RecordedTest, save

OUTPUT = "OTTLA_RECORD_CALLS"
"""Names the file that the record is written to."""
PACKAGE = f"{os.sep}src{os.sep}ottla{os.sep}"

ELSEWHERE = "elsewhere"
"""Stands for all functions that are not of the package."""


class Recorder:
    def __init__(self, output: Path) -> None:
        self._output = output
        self._seen: set[CodeType] = set()
        self._names: dict[CodeType, str] = {}
        self.tests: dict[str, RecordedTest] = {}

    def _trace(self, frame: FrameType, event: str, argument: object) -> None:
        self._seen.add(frame.f_code)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._seen.clear()
        threading.settrace(self._trace)
        sys.settrace(self._trace)
        begin_s = time.perf_counter()
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)
            took_s = time.perf_counter() - begin_s
            self.tests[item.nodeid] = RecordedTest(round(took_s, 3), self._calls())

    def _calls(self) -> frozenset[str]:
        names = (self._names.get(code) or self._name(code) for code in self._seen)
        return frozenset(name for name in names if name != ELSEWHERE)

    def _name(self, code: CodeType) -> str:
        """Returns the same string for the same function, because thousands of tests call it."""
        _, package, module = code.co_filename.rpartition(PACKAGE)
        name = f"src/ottla/{module.replace(os.sep, '/')}:{code.co_qualname}" if package else ELSEWHERE
        self._names[code] = name
        return name

    def pytest_sessionfinish(self) -> None:
        save(self._output, self.tests)


def pytest_configure(config: pytest.Config) -> None:
    output = os.environ.get(OUTPUT)
    if output:
        config.pluginmanager.register(Recorder(Path(output)), "call-recorder")
