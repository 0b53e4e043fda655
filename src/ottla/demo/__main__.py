"""Runs the demo: records written while brokers are killed, with a progress bar and a table of results; a key-value
store whose only durability is a log; and the Spark pipeline, if Java is installed. The exit code is 1 if a proof fails.
"""

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

from ottla.demo.crash_scenario import PARTITIONS, VALUE_BYTES, CrashScenario
from ottla.demo.customers import a_day
from ottla.demo.figures import figures_of, proof_of, verdict_of
from ottla.demo.page import Demo, write_page
from ottla.demo.pipeline import PipelineResults, run_pipeline
from ottla.demo.results import CrashResults
from ottla.testing.cluster_processes import ClusterProcesses

DAY_MS = 86_400_000


def main() -> int:
    """Runs all parts of the demo and writes the page. Returns 1 if a proof failed."""
    parser = argparse.ArgumentParser(prog="python -m ottla.demo", description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--plot", type=Path, default=Path("demo.html"), help="the file for the HTML page")
    arguments = parser.parse_args()
    console = Console()
    chance = random.Random(arguments.seed)
    kill_at = int(arguments.records * chance.uniform(0.2, 0.4))
    demo = Demo(CrashResults(arguments.records), arguments.seed)
    with tempfile.TemporaryDirectory(prefix="ottla-demo-") as directory, ClusterProcesses(Path(directory)) as cluster:
        console.print(f"three brokers are serving at {cluster.bootstrap} (seed {arguments.seed})")
        _siege(console, cluster, demo.story, kill_at)
        console.print(_table(demo.story))
        is_proven = _verdict(console, demo.story)
        is_kept = _kv(console, Path(directory), demo)
        try:
            is_restored = _pipeline(console, cluster.bootstrap, Path(directory), demo)
        finally:  # the results so far stay worth reading
            console.print(f"All of it on one page: {write_page(arguments.plot, demo)}")
        cluster.stop()
    return 0 if is_proven and is_kept and is_restored else 1


def _verdict(console: Console, story: CrashResults) -> bool:
    for problem in story.findings.problems:
        console.print(problem, style="red")
    is_proven, sentence = verdict_of(story)
    console.print(sentence, style="bold green" if is_proven else "bold red")
    return is_proven


def _kv(console: Console, directory: Path, demo: Demo) -> bool:
    """Runs the key-value store. Returns True also if the example is absent, as it is not part of the package."""
    from ottla.demo.kv import SERVER, WRITES, run_kv

    if not SERVER.exists():
        return True
    demo.kv = story = uvloop.run(run_kv(directory, lambda text: console.print(text, highlight=False)))
    if story.lost or story.count < WRITES:
        console.print(f"The key-value store did not keep what it acknowledged: {story}", style="bold red", markup=False)
        return False
    console.print(
        f"The other took over {story.silence_s:.1f} s later, and all {story.count:,} acknowledged values are there.",
        style="bold green",
    )
    return True


def _pipeline(console: Console, bootstrap: str, directory: Path, demo: Demo) -> bool:
    """Runs the pipeline. Returns True also if PySpark or Java is missing; it then prints how to install it."""
    from ottla.spark.jvm.java import JavaMissingError

    today_ms = time.time_ns() // 1_000_000 // DAY_MS * DAY_MS
    day = a_day(demo.seed, today_ms - DAY_MS)
    try:
        story = run_pipeline(bootstrap, directory, day, lambda text: console.print(text, highlight=False))
    except JavaMissingError as missing:
        demo.pipeline_left_out = f"The pipeline is skipped. {missing}"
    except ImportError as missing:
        needs = "it needs PySpark and pyarrow, pip install 'ottla[spark]'"
        demo.pipeline_left_out = f"The pipeline is skipped: {needs} ({missing})"
    else:
        demo.pipeline, demo.bad_job_ms = story, day.bad_job_ms
        return _restored(console, story)
    console.print(demo.pipeline_left_out, style="yellow", markup=False)
    return True


def _restored(console: Console, story: PipelineResults) -> bool:
    if not story.is_same or story.faults or story.archived != story.changes:
        console.print(f"The restored table differs from the original: {story}", style="bold red", markup=False)
        return False
    console.print(
        f"The restored table is identical to the original, row by row ({story.took_s:.0f} s).", style="bold green"
    )
    return True


def _siege(console: Console, cluster: ClusterProcesses, story: CrashResults, kill_at: int) -> None:
    restart_at = kill_at + story.records // 4
    columns = (TextColumn("{task.description:8}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        written = progress.add_task("written", total=story.records)
        read = progress.add_task("read", total=story.records, start=False)

        def on_read(count: int) -> None:
            progress.start_task(read)
            progress.update(read, total=story.records + story.probes, advance=count)

        async def run() -> None:
            siege = CrashScenario(
                cluster,
                story,
                kill_at,
                restart_at,
                on_written=lambda count: progress.advance(written, count),
                say=lambda sentence: progress.console.print(sentence, highlight=False),
            )
            await siege.run(on_read)

        uvloop.run(run())


def _table(story: CrashResults) -> Table:
    table = Table(
        title=f"{story.records:,} records of {VALUE_BYTES} bytes, {PARTITIONS} partitions, three replicas, acks=all"
    )
    table.add_column("")
    table.add_column("", justify="right")
    for name, text in figures_of(story):
        table.add_row(name, text)
    table.add_section()
    for name, text in proof_of(story):
        table.add_row(name, text)
    return table


if __name__ == "__main__":
    sys.exit(main())
