"""Runs targets of the Makefile one after another, even if one fails, and sums up their tests at the end.

    python scripts/test_stages.py TARGET... [--make MAKE]

A TARGET may carry variables of make, as in "test-spark PREPARED=yes". The output of each target is passed through. The
last lines are a table with one line for each target, the failed tests, and a total in pytest's format. The exit code is
0 only if every target succeeded.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import FrameType

KINDS = ("failed", "passed", "skipped", "deselected", "xfailed", "xpassed", "rerun", "warnings", "errors")
"""The outcomes that pytest counts, in its order."""
SUMMARY = re.compile(r"^(?:=+ )?((?:\d+ [a-z]+(?:, )?)+) in [\d.]+s")
NOTHING = re.compile(r"^(?:=+ )?no tests (?:ran|collected) in [\d.]+s")
COUNT = re.compile(r"(\d+) ([a-z]+)")
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
FAILURES_FOLLOW = "short test summary info"
READ_BYTES = 1 << 16
INTERRUPTED = 130


@dataclass(slots=True)
class Stage:
    """One target and the results of its tests."""

    name: str
    counts: Counter[str] = field(default_factory=Counter)
    failed_tests: list[str] = field(default_factory=list)
    has_summary: bool = False
    exit_code: int | None = None
    """None if it was not run."""
    seconds: float = 0.0
    _lists_failures: bool = False

    @property
    def result(self) -> str:
        if self.exit_code is None:
            return "not run"
        if self.exit_code:
            return "FAILED"
        return "passed" if self.has_summary else "no tests"

    def take_line(self, line: str) -> None:
        """Parses one line of output. The counts are those of pytest's last summary."""
        text = COLOURS.sub("", line).strip()
        if FAILURES_FOLLOW in text:
            self._lists_failures = True
        elif self._lists_failures and text.startswith(("FAILED ", "ERROR ")):
            self.failed_tests.append(text)
        elif found := SUMMARY.match(text):
            self.counts = counts_of(found.group(1))
            self.has_summary, self._lists_failures = True, False
        elif NOTHING.match(text):
            self.has_summary = True

    def finish(self, exit_code: int, seconds: float) -> None:
        """Records the end. A target that failed without a failed test counts as one error, not as success."""
        self.exit_code, self.seconds = exit_code, seconds
        if exit_code and not self.counts["failed"] and not self.counts["errors"]:
            self.counts["errors"] += 1
            why = "no test failed" if self.has_summary else "no tests were reported"
            self.failed_tests.append(f"ERROR {self.name} ended with exit code {exit_code}, but {why}: see its output")


def counts_of(summary: str) -> Counter[str]:
    """Parses text such as `1 failed, 20 passed, 1 warning`."""
    plural = {"error": "errors", "warning": "warnings"}
    return Counter({plural.get(kind, kind): int(count) for count, kind in COUNT.findall(summary)})


def total_line(stages: Iterable[Stage]) -> str:
    """Returns a line like the last one of pytest, for all stages together."""
    stages = list(stages)
    counts: Counter[str] = Counter()
    for stage in stages:
        counts += stage.counts
    shown = [f"{counts[kind]} {kind}" for kind in KINDS if counts[kind] or kind in ("failed", "passed")]
    return f"===== {', '.join(shown)} in {sum(stage.seconds for stage in stages):.2f}s ====="


def report(stages: Sequence[Stage]) -> list[str]:
    width = max(len(stage.name) for stage in stages)
    lines = ["", f"{'stage':{width}}  {'result':8} {'passed':>7} {'failed':>7} {'errors':>7} {'skipped':>8}  time"]
    for stage in stages:
        numbers = [stage.counts[kind] for kind in ("passed", "failed", "errors", "skipped")]
        cells = f"{numbers[0]:7} {numbers[1]:7} {numbers[2]:7} {numbers[3]:8}"
        lines.append(f"{stage.name:{width}}  {stage.result:8} {cells}  {time_text(stage.seconds)}")
    lines += [text for stage in stages for text in stage.failed_tests]
    return [*lines, total_line(stages)]


def time_text(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole // 60} min {whole % 60} s" if whole >= 60 else f"{whole} s"


def run_stage(stage: Stage, command: Sequence[str]) -> None:
    """Runs a command and passes its output through. If interrupted, raises KeyboardInterrupt after it has ended."""
    begin = time.monotonic()
    environment = dict(os.environ)
    if sys.stdout.isatty():
        environment.setdefault("FORCE_COLOR", "1")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment)
    try:
        pass_on(process, stage)
        exit_code = process.wait()
    except KeyboardInterrupt:
        process.terminate()
        stage.finish(process.wait() or INTERRUPTED, time.monotonic() - begin)
        raise
    stage.finish(exit_code, time.monotonic() - begin)


def pass_on(process: subprocess.Popen[bytes], stage: Stage) -> None:
    assert process.stdout is not None
    rest = b""
    while data := os.read(process.stdout.fileno(), READ_BYTES):
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            stage.take_line(line.decode(errors="replace"))
    stage.take_line(rest.decode(errors="replace"))


def interrupt(_: int, __: FrameType | None) -> None:
    raise KeyboardInterrupt


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Runs all targets, even after a failure, and prints a summary of their tests."
    )
    parser.add_argument(
        "targets", nargs="+", metavar="TARGET", help="targets of the Makefile, with variables if needed"
    )
    parser.add_argument("--make", default="make", help="the make to call (default: make)")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, interrupt)
    stages = [Stage(shlex.split(target)[0]) for target in options.targets]
    code = 0
    try:
        for stage, target in zip(stages, options.targets, strict=True):
            print(f"--- {stage.name}", flush=True)
            run_stage(stage, [*shlex.split(options.make), "--no-print-directory", *shlex.split(target)])
            code = code or int(stage.exit_code != 0)
    except KeyboardInterrupt:
        code = INTERRUPTED
    print("\n".join(report(stages)), flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
