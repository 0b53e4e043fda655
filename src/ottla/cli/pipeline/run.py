"""`ottla pipeline run FILE`: runs the functions of a Python file as queries over topics."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.number_options import parse_duration_ms
from ottla.cli.output import DEFAULT_BOOTSTRAP, Bootstrap, say
from ottla.cli.pipeline.spark import DEFAULT_MASTER, Master, Settings, failures_in_words, spark_session
from ottla.cli.sql.run import queries_ended, tell_end, watch

if TYPE_CHECKING:
    from ottla.spark.sql.running_query import RunningQuery


def run(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The Python file with a Pipeline().", show_default=False)
    ],
    checkpoints: Annotated[
        str,
        typer.Option(
            "--checkpoints",
            metavar="DIR",
            help="Store checkpoints here, from which the next run continues.",
            show_default=False,
        ),
    ],
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="FUNCTION", help="Run only this function; repeatable.")
    ] = None,
    continuous: Annotated[bool, typer.Option("--continuous", help="Continue as records arrive, until Ctrl-C.")] = False,
    every: Annotated[str, typer.Option("--every", help="Check for new records this often, with --continuous.")] = "1s",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    master: Master = DEFAULT_MASTER,
    conf: Settings = None,
) -> None:
    """Runs a pipeline from a Python file: each function is a query that writes to its topic exactly once."""
    interval_ms = parse_duration_ms(every, "--every")
    with failures_in_words():
        from ottla.spark.pipeline_file import load_pipeline

        pipeline = load_pipeline(file)
        pipeline.in_order(only or ())
    with spark_session(f"pipeline {file.stem}", master, conf) as spark:
        from ottla.spark.pipeline_run import run_pipeline
        from ottla.spark.sql.catalog import Catalog
        from ottla.spark.sql.context import Context

        interval = f"{interval_ms} milliseconds" if continuous else None
        context = Context(bootstrap, Catalog(checkpoints), lambda: spark, say, interval)
        with queries_ended(context):
            run_pipeline(context, pipeline, file, only=only or (), on_start=_tell if continuous else tell_end)
            if continuous:
                watch(context)


def _tell(query: RunningQuery) -> None:
    say(f"{query.name}: running")
