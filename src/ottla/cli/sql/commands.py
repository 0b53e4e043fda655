"""`ottla sql`: streaming SQL over topics, on Spark."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.failures import CommandError
from ottla.cli.number_options import parse_duration_ms
from ottla.cli.output import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, say
from ottla.cli.pipeline.spark import DEFAULT_MASTER, Master, Settings, failures_in_words, spark_session
from ottla.cli.pipeline.spark_interrupts import interrupts
from ottla.cli.sql.run import DisplayOptions, queries_ended, run_statement, watch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ottla.spark.sql.context import Context
    from ottla.spark.sql.failures import SqlError

DIRECTORY_VARIABLE = "OTTLA_SQL_DIRECTORY"
WRONG_CALL = 2


def sql(
    statements: Annotated[
        str | None,
        typer.Argument(metavar="[SQL]", help="The statements to run, separated by semicolons.", show_default=False),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Read the statements from this file.", show_default=False)
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", "--available-now", help="Process the existing records of the topics, and exit.")
    ] = False,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Stop after this many rows.")] = None,
    start: Annotated[
        str,
        typer.Option("--from", metavar="earliest|latest", help="Start a SELECT at the earliest or the latest offset."),
    ] = "earliest",
    every: Annotated[str, typer.Option("--every", help="Check for new records this often.")] = "1s",
    directory: Annotated[
        str,
        typer.Option(
            "--directory",
            envvar=DIRECTORY_VARIABLE,
            help="The directory for definitions and checkpoints of streams, tables and queries.",
        ),
    ] = "ottla-sql",
    dead_letters: Annotated[
        str | None,
        typer.Option(
            "--dead-letters",
            metavar="TOPIC|none",
            help="Send bad records of undeclared topics to this topic (default: TOPIC-dead-letters).",
        ),
    ] = None,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    master: Master = DEFAULT_MASTER,
    conf: Settings = None,
) -> None:
    """Runs SQL over topics: SELECT shows rows as they arrive, CREATE ... AS and INSERT INTO write them to topics.

    Without statements and without a file, opens a prompt.
    """
    if start not in ("earliest", "latest"):
        raise typer.BadParameter(f'"{start}" is neither earliest nor latest', param_hint="--from")
    interval_ms = parse_duration_ms(every, "--every")
    if statements is not None and file is not None:
        raise typer.BadParameter("give statements or a file, not both", param_hint="--file")
    showing = DisplayOptions(as_json, limit, start, once, f"{interval_ms} milliseconds")
    text = _text(statements, file)
    with interrupts.installed(), failures_in_words(), contextlib.ExitStack() as stack:
        from ottla.spark.sql.catalog import Catalog
        from ottla.spark.sql.context import Context

        context = Context(
            servers=bootstrap,
            catalog=Catalog(directory),
            spark=_lazily(stack, master, conf),
            tell=say,
            every=None if once else showing.every,
            dead_letters=dead_letters,
        )
        stack.enter_context(queries_ended(context))
        if text is None:
            from ottla.cli.sql.prompt import prompt

            prompt(context, showing, Path(directory))
        else:
            run_text(context, text, showing)


def run_text(context: Context, text: str, showing: DisplayOptions) -> None:
    """Runs all statements. Then, unless `--once` is given, waits for the queries they have started until Ctrl-C."""
    from ottla.spark.sql.failures import SqlError
    from ottla.spark.sql.parser import parse
    from ottla.spark.sql.statements import Select

    try:
        found = parse(text)
        for statement in found:
            if isinstance(statement, Select) and not showing.once and statement is not found[-1]:
                raise SqlError("a SELECT that is not the last statement would never end; use --once")
        for statement in found:
            run_statement(context, statement, text, showing)
    except SqlError as mistake:
        refuse(mistake)
        raise typer.Exit(WRONG_CALL) from None
    if not showing.once:
        watch(context)


def refuse(mistake: SqlError) -> None:
    """Prints an error in a statement."""
    print(f"ottla: {mistake}", file=sys.stderr)


def _text(statements: str | None, file: Path | None) -> str | None:
    """Returns the statements to run, or None if a person types them."""
    if file is not None:
        try:
            return file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise CommandError(f"{file} is not a text file") from None
    if statements is None and not os.isatty(0):
        return sys.stdin.read()
    return statements


def _lazily(stack: contextlib.ExitStack, master: str, conf: list[str] | None) -> Callable[[], SparkSession]:
    """Returns a function that starts the session on its first call, so that statements without Spark do not need it."""
    found: list[SparkSession] = []

    def session() -> SparkSession:
        if not found:
            found.append(stack.enter_context(spark_session("sql", master, conf)))
        return found[0]

    return session
