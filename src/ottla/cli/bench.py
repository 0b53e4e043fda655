"""`ottla bench`: measures a matrix of configurations, compares two runs, and writes reports."""

from __future__ import annotations

import signal
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.failures import CommandError
from ottla.cli.output import AsJson, print_json, print_table, say

if TYPE_CHECKING:
    from ottla.bench.suite.matrix import Matrix
    from ottla.bench.suite.run_results import Results
    from ottla.bench.suite.store import Store

commands = typer.Typer(help="Measures brokers under load, to compare settings and systems.", no_args_is_help=True)

RESULTS = Path("bench-results")
RAM_DISK = Path("/dev/shm")


@commands.command()
def run(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="The TOML file that defines the matrix of configurations.", show_default=False
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Write the results to this directory (default: bench-results/NAME)."),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Measure everything again, and set old results aside.")
    ] = False,
    mix: Annotated[bool, typer.Option("--mix", help="Continue even if there are results of another commit.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="Only list the measurements.")] = False,
    repetitions: Annotated[
        int | None, typer.Option(min=1, help="Override the number of repetitions in the file.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Put the brokers' data here, on the disk to measure (default: the directory of the results)."
        ),
    ] = None,
    ram_disk: Annotated[Path, typer.Option(help="Use this directory as the RAM disk.")] = RAM_DISK,
) -> None:
    """Measures the configurations in a file and writes the report. After an interruption, run it again to continue."""
    from dataclasses import replace

    from ottla.bench.results import this_run
    from ottla.bench.suite.drivers import missing_for
    from ottla.bench.suite.matrix import rows_of
    from ottla.bench.suite.runner import Runner, default_places
    from ottla.bench.suite.store import Store

    matrix = _read(file)
    if repetitions is not None:
        matrix = replace(matrix, repetitions=repetitions)
    if list_:
        _print_cells(matrix)
        return
    if (missing := missing_for(str(row.configuration["driver"]) for row in rows_of(matrix))) is not None:
        raise CommandError(missing)
    directory = out or RESULTS / file.stem
    store, this = Store(directory), this_run(str(file))
    if fresh and (old := store.set_aside()) is not None:
        say(f"the old results are in {old}")
    if not mix:
        _same_commit(store, this.commit)
    previous = signal.signal(signal.SIGTERM, _interrupt)
    try:
        outcome = Runner(matrix, store, default_places(directory, data, ram_disk), this, say).measure_all()
    except KeyboardInterrupt:
        say(f"interrupted: the measurements so far are in {store.path}; the same command continues from there")
        raise
    finally:
        signal.signal(signal.SIGTERM, previous)
    report(directory)
    problems = [*outcome.failures, *(f"{name}: {reason}" for name, reason in outcome.unavailable.items())]
    if problems:
        raise CommandError(f"{len(problems)} could not be measured: {problems[0]}")


def _interrupt(_: int, __: FrameType | None) -> None:
    raise KeyboardInterrupt


def _read(file: Path) -> Matrix:
    from ottla.bench.suite.matrix_file import MatrixError, read_matrix

    try:
        return read_matrix(file)
    except MatrixError as mistake:
        raise CommandError(str(mistake)) from mistake


def _same_commit(store: Store, commit: str) -> None:
    """Raises FailedError if the store has results of other commits, which cannot be compared with new ones."""
    others = sorted({str(line.get("commit")) for line in store.lines()} - {commit})
    if others:
        raise CommandError(
            f"{store.path} has results of commit {', '.join(others)}, but this is {commit}; --fresh measures "
            "everything again, --mix continues anyway"
        )


def _print_cells(matrix: Matrix) -> None:
    from ottla.bench.suite.order import cells_of, estimate_s
    from ottla.bench.suite.runner import duration_text

    cells, left_out = cells_of(matrix)
    rows = [(cell.target.name, cell.row.label, cell.row.key) for cell in cells if cell.repetition == 0]
    print_table(["target", "configuration", "key"], rows)
    for each in left_out:
        print(f"skipped: {each.target}: {each.label}: {each.reason}")
    seconds = sum(estimate_s(cell, matrix.warm_up_s) for cell in cells)
    print(f"{len(rows)} x {matrix.repetitions} measurements, about {duration_text(seconds)}")


@commands.command()
def report(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="The directory with the results of a run.", show_default=False)
    ],
) -> None:
    """Writes results.csv and report.html from the results of a run, and prints the table."""
    from ottla.bench.suite.csv_file import write_csv
    from ottla.bench.suite.page import write_page
    from ottla.bench.suite.terminal import print_results

    results = _results(directory)
    print_results(results)
    say(f"{write_csv(directory, results)}, {write_page(directory, results)}")


@commands.command()
def compare(
    earlier: Annotated[Path, typer.Argument(metavar="A", help="The results of the earlier run.", show_default=False)],
    later: Annotated[Path, typer.Argument(metavar="B", help="The results to compare with A.", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Compares two runs: shows B as a multiple of A for every configuration that both have measured."""
    from ottla.bench.suite.comparison import compare_results

    changes = compare_results(_results(earlier), _results(later))
    if not changes:
        raise CommandError(f"{earlier} and {later} have no configuration and target in common")
    if as_json:
        print_json([change.as_json() for change in changes])
        return
    headings = ["target", "configuration", "figure", "A", "B", "B / A", "from", "to", "verdict"]
    print_table(headings, [change.cells() for change in changes], right=["A", "B", "B / A", "from", "to"])


def _results(directory: Path) -> Results:
    from ottla.bench.suite.run_results import Results
    from ottla.bench.suite.store import RESULTS_FILE, read_lines

    path = directory / RESULTS_FILE if directory.is_dir() else directory
    found = Results(read_lines(path))
    if not found.cells:
        raise CommandError(f"there are no results in {path}")
    return found
