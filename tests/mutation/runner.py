"""Runs the tests of mutants, each in a copy of the tree."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import Enum
from queue import SimpleQueue

from tests.mutation.mutants import Mutant
from tests.mutation.sandbox import BuildError, Outcome, Sandbox
from tests.mutation.selection import Selection, simulations_of

PYTEST = (
    "-m",
    "pytest",
    "--exitfirst",
    "--quiet",
    "--no-header",
    "--tb=no",
    "-p",
    "no:cacheprovider",
    "--hypothesis-seed=0",
)
TIMEOUT_FACTOR = 5.0
TIMEOUT_SECONDS_MIN = 30.0
BASE_SECONDS_MAX = 1800.0
START_SECONDS = 5.0
"""Until the first test begins."""
NO_TESTS = 5
"""Exit code of pytest if it found no test."""
FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", re.MULTILINE)


class Verdict(Enum):
    KILLED = "killed"
    TIMED_OUT = "timed out"
    SURVIVED = "survived"
    EQUIVALENT = "equivalent"
    INVALID = "does not compile"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Result:
    mutant: Mutant
    verdict: Verdict
    reason: str = ""
    """The test that killed the mutant, or the reason why it is equivalent."""


class BrokenTestsError(Exception):
    """The tests cannot be loaded, or the simulation fails, without any mutant."""


@dataclass
class Runner:
    selection: Selection
    simulation_seeds: int = 0
    deadline_s: float = float("inf")
    """On the clock of `time.monotonic`. No mutant is begun after it."""
    broken: set[str] = field(default_factory=set)
    """Tests that fail without any mutant. They kill nothing."""
    _passing: set[str] = field(default_factory=set)
    _base_seconds: dict[tuple[str, ...], float] = field(default_factory=dict)

    def run_all(self, mutants: Sequence[Mutant], jobs: int, report: Callable[[Result], None]) -> list[Result]:
        """Judges mutants, `jobs` at a time, and reports each result when it is known."""
        sandboxes: SimpleQueue[Sandbox] = SimpleQueue()

        def work(mutant: Mutant) -> Result:
            sandbox = sandboxes.get()
            try:
                result = self._judge(sandbox, mutant)
            finally:
                sandboxes.put(sandbox)
            report(result)
            return result

        with ExitStack() as stack:
            for _ in range(min(jobs, len(mutants))):
                sandboxes.put(stack.enter_context(Sandbox()))
            with ThreadPoolExecutor(jobs) as pool:
                return list(pool.map(work, mutants))

    def _judge(self, sandbox: Sandbox, mutant: Mutant) -> Result:
        if time.monotonic() > self.deadline_s:
            return Result(mutant, Verdict.NOT_RUN)
        try:
            return self._test(sandbox, mutant) or self._simulate(sandbox, mutant) or Result(mutant, Verdict.SURVIVED)
        except BuildError:
            return Result(mutant, Verdict.INVALID)

    def _test(self, sandbox: Sandbox, mutant: Mutant) -> Result | None:
        tests = self.selection.tests_for(mutant)
        while tests:
            command = (*PYTEST, *(f"--deselect={each}" for each in sorted(self.broken)), *tests)
            seconds = self.selection.seconds_of(tests)
            limit = self._limit(sandbox, command) if seconds is None else _limit_for(seconds + START_SECONDS)
            with sandbox.mutated(mutant):
                outcome = sandbox.run(command, limit)
            if outcome.code is None:
                return Result(mutant, Verdict.TIMED_OUT)
            if outcome.code in (0, NO_TESTS):
                return None
            failed = failed_test(outcome)
            if failed is None and sandbox.run((*command, "--collect-only"), BASE_SECONDS_MAX).code != 0:
                raise BrokenTestsError(f"the tests cannot be loaded without a mutant either:\n{outcome.output}")
            if failed is None or self._passes(sandbox, failed):
                return Result(mutant, Verdict.KILLED, failed or "the tests cannot be loaded")
            self.broken.add(failed)
        return None

    def _passes(self, sandbox: Sandbox, test: str) -> bool:
        """Reports whether a test passes without any mutant."""
        if test in self.broken:
            return False
        if test not in self._passing and sandbox.run((*PYTEST, test), BASE_SECONDS_MAX).code == 0:
            self._passing.add(test)
        return test in self._passing

    def _simulate(self, sandbox: Sandbox, mutant: Mutant) -> Result | None:
        for option in simulations_of(mutant.module) if self.simulation_seeds else []:
            seeds = ("--seeds", str(self.simulation_seeds), "--workers", "1")
            command = ("-m", "tests.simulation.campaign", *seeds, *([option] if option else []))
            limit = self._limit(sandbox, command)
            with sandbox.mutated(mutant):
                outcome = sandbox.run(command, limit)
            if outcome.code is None:
                return Result(mutant, Verdict.TIMED_OUT)
            if outcome.code != 0:
                return Result(mutant, Verdict.KILLED, f"simulation {option}")
        return None

    def _limit(self, sandbox: Sandbox, command: tuple[str, ...]) -> float:
        """Returns the time limit of a command, from its time without a mutant."""
        if command not in self._base_seconds:
            begin_s = time.monotonic()
            outcome = sandbox.run(command, BASE_SECONDS_MAX)
            if outcome.code != 0 and "tests.simulation.campaign" in command:
                raise BrokenTestsError(f"the simulation fails without a mutant:\n{outcome.output}")
            self._base_seconds[command] = time.monotonic() - begin_s
        return _limit_for(self._base_seconds[command])


def _limit_for(seconds: float) -> float:
    return max(TIMEOUT_FACTOR * seconds, TIMEOUT_SECONDS_MIN)


def failed_test(outcome: Outcome) -> str | None:
    """Returns the name of the test, or of the file of tests, that failed."""
    found = FAILED.search(outcome.output)
    return None if found is None else found.group(1)
