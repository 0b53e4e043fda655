"""Runs everything that takes a night: a siege in each shape, then a campaign of each kind of simulation.

    python -m tests.processes.nightly                              # an hour for each shape, 2,000 seeds for each kind
    python -m tests.processes.nightly --minutes 10 --shape 3,etcd --kind groups --seeds 100

It writes a report, `build/nightly/report.md`, after each part, so that one that is ended early has the parts so far.
Histories and logs of a siege with anomalies are kept beside it. The exit status is 1 if there was any anomaly.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import platform
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import SystemRandom

from tests.processes.siege.cluster import Shape
from tests.processes.siege.runs import chosen_shapes, run_siege
from tests.simulation.campaign.__main__ import campaign, parse_options, seeds_of
from tests.simulation.campaign.display import Tallies, replay_command
from tests.simulation.campaign.outcomes import Kind
from tests.simulation.state_faults import SEEDS_FROM

DIRECTORY = Path("build") / "nightly"
REPORT = "report.md"
MINUTES = 60.0
SEEDS = 2000
FAULTS_SHOWN = 30


@dataclass(frozen=True, slots=True)
class Row:
    """One part of the night."""

    name: str
    minutes: float
    operations: int
    unit: str
    """The unit of the operations."""
    faults: Mapping[str, int] = field(default_factory=dict)
    anomalies: Mapping[str, int] = field(default_factory=dict)
    first: str = ""
    """The first anomaly."""
    evidence: str = ""
    """The directory, or the command, that shows it."""


def report(rows: Sequence[Row], title: str, *, is_over: bool) -> str:
    """Returns the report in Markdown."""
    bad = [row for row in rows if row.anomalies]
    state = "" if is_over else " It is not over yet."
    verdict = f"{len(rows)} parts, {len(bad)} of them with anomalies.{state}"
    lines = [
        f"# {title}",
        "",
        verdict,
        "",
        "| part | minutes | operations | faults | anomalies |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        cells = (
            row.name,
            f"{row.minutes:.1f}",
            f"{row.operations:,} {row.unit}",
            _faults(row.faults),
            _counts(row.anomalies),
        )
        lines.append(f"| {' | '.join(cells)} |")
    for row in bad:
        lines += ["", f"## {row.name}", "", row.first.replace("\n", " "), "", f"Evidence: `{row.evidence}`"]
    return "\n".join(lines) + "\n"


def _faults(faults: Mapping[str, int]) -> str:
    """Returns the total and the most frequent kinds."""
    if not faults:
        return "none"
    kinds = Counter(faults).most_common(FAULTS_SHOWN)
    more = f", {len(faults) - len(kinds)} other kinds" if len(faults) > len(kinds) else ""
    return f"{sum(faults.values()):,}: " + ", ".join(f"{name} {count:,}" for name, count in kinds) + more


def _counts(anomalies: Mapping[str, int]) -> str:
    return ", ".join(f"**{name} {count}**" for name, count in sorted(anomalies.items())) or "none"


def siege_row(directory: Path, shape: Shape, minutes: float, seed: int, only: Sequence[str] | None) -> Row:
    """Runs a siege. Keeps its directory only if there are anomalies."""
    own = directory / shape.name
    result = run_siege(own, shape, minutes * 60, seed, only)
    anomalies = Counter(result.verdict.findings.counts)
    first = result.verdict.findings.first
    if result.exit_code != 0:
        anomalies["the siege itself failed"] = 1
        first = first or f"it ended with {result.exit_code}"
    print("\n" + result.verdict.text + "\n", flush=True)
    if not anomalies:
        shutil.rmtree(own)
    verdict = result.verdict
    name = f"siege: {shape}, seed {seed}"
    return Row(name, result.minutes, verdict.operations, "operations", verdict.faults, anomalies, first, str(own))


def simulation_row(directory: Path, kind: Kind, first: int, count: int, jobs: int) -> Row:
    """Runs a campaign. Its output goes to a file."""
    began_s = time.monotonic()
    with (directory / f"simulation-{kind.value}.log").open("w") as log, contextlib.redirect_stdout(log):
        seeds = {kind: seeds_of(kind, first, count)}
        tallies = Tallies({kind: len(seeds[kind])})
        campaign(seeds, tallies, parse_options(["--jobs", str(jobs)]))
    tally = tallies.by_kind[kind]
    minutes = (time.monotonic() - began_s) / 60
    anomalies = Counter(failed.checker for _, failed in tally.failures)
    seed, failed = min(tally.failures, key=lambda each: each[0]) if tally.failures else (0, None)
    text = f"seed {seed}: {failed.checker}: {failed.text}" if failed is not None else ""
    name = f"simulation: {kind.value}, {tally.done:,} seeds from {first}, {tally.virtual_s / 3600:.1f} virtual hours"
    evidence = replay_command(seed, kind)
    return Row(name, minutes, tally.acknowledged, kind.noun, tally.faults, anomalies, text, evidence)


def title() -> str:
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    found = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    commit = found.stdout.strip() or "no repository"
    return f"Night of {now}, {commit}, Python {platform.python_version()}, {os.cpu_count()} cores"


class Night:
    """Runs the parts, and writes the report after each."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._rows: list[Row] = []
        self._title = title()
        directory.mkdir(parents=True, exist_ok=True)

    def add(self, row: Row) -> None:
        self._rows.append(row)
        self.write(is_over=False)

    def write(self, *, is_over: bool) -> Path:
        path = self._directory / REPORT
        path.write_text(report(self._rows, self._title, is_over=is_over))
        return path

    @property
    def ok(self) -> bool:
        return not any(row.anomalies for row in self._rows)


def main() -> int:
    options = _options()
    directory: Path = options.directory
    shutil.rmtree(directory, ignore_errors=True)
    night = Night(directory)
    print(f"seed {options.seed}; the report is {directory / REPORT}", flush=True)
    for shape in chosen_shapes(options.shape):
        night.add(siege_row(directory, shape, options.minutes, options.seed, options.only))
    first = options.seed % (SEEDS_FROM - options.seeds)
    for kind in [Kind(name) for name in options.kind] if options.kind else list(Kind):
        night.add(simulation_row(directory, kind, first, options.seeds, options.jobs))
    print(night.write(is_over=True).read_text())
    return 0 if night.ok else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.processes.nightly", description=__doc__)
    parser.add_argument("--minutes", type=float, default=MINUTES, help="of each siege")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="of each kind of simulation")
    parser.add_argument("--shape", action="append", help="only this shape of a siege, as 3,etcd; several in turn")
    parser.add_argument("--kind", action="append", choices=[kind.value for kind in Kind], help="only this simulation")
    parser.add_argument("--only", action="append", help="a kind of fault in sieges; several may be given")
    parser.add_argument("--seed", type=int, default=SystemRandom().randrange(1 << 32))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes of a campaign")
    parser.add_argument("--directory", type=Path, default=DIRECTORY, help="for the report and evidence; it is emptied")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
