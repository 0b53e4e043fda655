"""`python -m ottla.demo`: the siege with a progress bar, and its story as a table; a key-value store whose only
durability is a log; then the pipeline on Spark, if there is a Java for it. Ends with 1 if a proof fails."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ottla.demo.customers import a_day
from ottla.demo.pipeline import PipelineStory, run_pipeline
from ottla.demo.siege import PARTITIONS, VALUE_BYTES, Siege
from ottla.demo.story import Story
from ottla.testing.cluster_processes import ClusterProcesses

DAY_MS = 86_400_000


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m ottla.demo", description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--plot", type=Path, default=Path("demo.html"), help="where the pipeline's plot goes")
    arguments = parser.parse_args()
    console = Console()
    chance = random.Random(arguments.seed)
    kill_at = int(arguments.records * chance.uniform(0.2, 0.4))
    story = Story(arguments.records)
    with tempfile.TemporaryDirectory(prefix="ottla-demo-") as directory, ClusterProcesses(Path(directory)) as cluster:
        console.print(f"three brokers serve at {cluster.bootstrap} (seed {arguments.seed})")
        _siege(console, cluster, story, kill_at)
        console.print(_table(story))
        is_proven = _verdict(console, story)
        is_kept = _kv(console, Path(directory))
        is_restored = _pipeline(console, cluster.bootstrap, Path(directory), arguments.seed, arguments.plot)
        cluster.stop()
    return 0 if is_proven and is_kept and is_restored else 1


def _verdict(console: Console, story: Story) -> bool:
    for problem in story.findings.problems:
        console.print(problem, style="red")
    if story.proven:
        console.print("Every acknowledged record is there, once and in order.", style="bold green")
        return True
    if story.findings.ok:
        console.print("The kill did not come in the middle, so nothing is proven: try more records.", style="bold red")
    else:
        console.print("The proof failed: this is a bug in Ottla.", style="bold red")
    return False


def _kv(console: Console, directory: Path) -> bool:
    """True also where the example is not there: it is a part of the repository, not of the package."""
    from ottla.demo.kv import SERVER, WRITES, run_kv

    if not SERVER.exists():
        return True
    story = uvloop.run(run_kv(directory, lambda text: console.print(text, highlight=False)))
    if story.lost or story.count < WRITES:
        console.print(f"The key-value store did not keep what it acknowledged: {story}", style="bold red", markup=False)
        return False
    console.print(
        f"The other took over {story.silence_s:.1f} s later, and all {story.count:,} acknowledged values are there.",
        style="bold green",
    )
    return True


def _pipeline(console: Console, bootstrap: str, directory: Path, seed: int, plot: Path) -> bool:
    """True also where there is nothing to run it on: that is said, and how to get it."""
    from ottla.spark.session import JavaMissingError

    today_ms = time.time_ns() // 1_000_000 // DAY_MS * DAY_MS
    day = a_day(seed, today_ms - DAY_MS)
    try:
        story = run_pipeline(bootstrap, directory, day, lambda text: console.print(text, highlight=False))
    except JavaMissingError as missing:
        console.print(f"The pipeline is left out. {missing}", style="yellow", markup=False)
        return True
    except ImportError as missing:
        console.print(
            f"The pipeline is left out: it needs PySpark and pyarrow, pip install 'ottla[spark]' ({missing})",
            style="yellow",
            markup=False,
        )
        return True
    return _restored(console, story, day.bad_job_ms, plot)


def _restored(console: Console, story: PipelineStory, bad_job_ms: int, plot: Path) -> bool:
    if not story.is_same or story.faults or story.archived != story.changes:
        console.print(f"The restored table is not the one that was there: {story}", style="bold red", markup=False)
        return False
    console.print(
        f"The restored table is the one that was there, row by row ({story.took_s:.0f} s).", style="bold green"
    )
    if story.rows_by_minute:
        from ottla.demo.plot import write_plot

        console.print(f"The day as a plot: {write_plot(plot, story.rows_by_minute, bad_job_ms, story.rows_restored)}")
    return True


def _siege(console: Console, cluster: ClusterProcesses, story: Story, kill_at: int) -> None:
    restart_at = kill_at + story.records // 4
    columns = (TextColumn("{task.description:8}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        written = progress.add_task("written", total=story.records)
        read = progress.add_task("read", total=story.records, start=False)

        def on_read(count: int) -> None:
            progress.start_task(read)
            progress.update(read, total=story.records + story.probes, advance=count)

        async def run() -> None:
            siege = Siege(
                cluster,
                story,
                kill_at,
                restart_at,
                on_written=lambda count: progress.advance(written, count),
                say=lambda sentence: progress.console.print(sentence, highlight=False),
            )
            await siege.run(on_read)

        uvloop.run(run())


def _table(story: Story) -> Table:
    table = Table(
        title=f"{story.records:,} records of {VALUE_BYTES} bytes, {PARTITIONS} partitions, three replicas, acks=all"
    )
    table.add_column("")
    table.add_column("", justify="right")
    table.add_row("written and acknowledged", _rate(story.records, story.write_s))
    table.add_row("acknowledged before the kill of the leader", f"{story.acknowledged_before_kill:,}")
    table.add_row("from the kill to new leaders", f"{story.new_leaders_s * 1000:,.0f} ms")
    waits = sorted(story.next_write_s.values())
    if waits:
        table.add_row(
            f"to the next acknowledged write, {len(waits)} partition(s)",
            f"{waits[0] * 1000:,.0f} to {waits[-1] * 1000:,.0f} ms",
        )
    table.add_row("from its restart to in sync again", f"{story.in_sync_s:,.1f} s")
    table.add_row("all three killed: from restart to serving", f"{story.outage_s:,.1f} s")
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
