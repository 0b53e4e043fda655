"""`python -m ottla.demo`: the siege with a progress bar, and its story as a table. Ends with 1 if the proof fails."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ottla.demo.siege import PARTITIONS, VALUE_BYTES, Story, run
from ottla.testing.broker_process import BrokerProcess


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m ottla.demo", description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    arguments = parser.parse_args()
    console = Console()
    chance = random.Random(arguments.seed)
    kill_at = int(arguments.records * chance.uniform(0.3, 0.6))
    story = Story(arguments.records)
    with tempfile.TemporaryDirectory(prefix="ottla-demo-") as directory:
        broker = BrokerProcess(Path(directory) / "data").start()
        console.print(f"a broker serves at {broker.bootstrap}; it will be killed with -9 (seed {arguments.seed})")
        try:
            _siege(console, broker, story, kill_at)
        finally:
            if broker.running:
                broker.stop()
    console.print(_table(story))
    for problem in story.findings.problems:
        console.print(problem, style="red")
    if story.proven:
        console.print("Every acknowledged record is there, once and in order.", style="bold green")
        return 0
    if story.findings.ok:
        console.print("The kill did not come in the middle, so nothing is proven: try more records.", style="bold red")
    else:
        console.print("The proof failed: this is a bug in Ottla.", style="bold red")
    return 1


def _siege(console: Console, broker: BrokerProcess, story: Story, kill_at: int) -> None:
    columns = (TextColumn("{task.description:8}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        written = progress.add_task("written", total=story.records)
        read = progress.add_task("read", total=story.records, start=False)

        def on_read(count: int) -> None:
            progress.start_task(read)
            progress.advance(read, count)

        uvloop.run(run(broker, story, kill_at, lambda count: progress.advance(written, count), on_read))


def _table(story: Story) -> Table:
    table = Table(title=f"{story.records:,} records of {VALUE_BYTES} bytes, {PARTITIONS} partitions, class disk")
    table.add_column("")
    table.add_column("", justify="right")
    table.add_row("written and acknowledged", _rate(story.records, story.write_s))
    table.add_row("acknowledged before the kill", f"{story.acknowledged_before_kill:,}")
    table.add_row("from the restart to serving again", f"{story.recovery_s * 1000:,.0f} ms")
    table.add_row("read back", _rate(story.findings.read, story.read_s))
    table.add_section()
    for name in ("acknowledged", "read", "missing", "doubled", "reordered", "misplaced"):
        table.add_row(name, f"{getattr(story.findings, name):,}")
    return table


def _rate(records: int, seconds: float) -> str:
    per_second = records / seconds if seconds else 0.0
    return f"{per_second:,.0f} records/s, {per_second * VALUE_BYTES / 1e6:,.1f} MB/s"


if __name__ == "__main__":
    sys.exit(main())
