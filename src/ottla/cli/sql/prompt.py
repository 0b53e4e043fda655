"""The prompt of `ottla sql`. A semicolon ends a statement, Ctrl-C a SELECT, and Ctrl-D the prompt."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.cli.failures import CommandError
from ottla.cli.output import say
from ottla.cli.pipeline.spark import failures_in_words
from ottla.cli.pipeline.spark_interrupts import interrupts
from ottla.cli.sql.run import DisplayOptions, run_statement, tell_progress

if TYPE_CHECKING:
    from ottla.spark.sql.context import Context

FIRST, MORE = "sql> ", "...> "
HISTORY_MAX = 1000
LEAVING = ("exit", "quit", "\\q")
HELP = """SELECT ... FROM topic            rows as they arrive, until Ctrl-C
CREATE STREAM name (column type, ...) WITH (topic = '...', format = 'json')
CREATE STREAM | TABLE name AS SELECT ...
INSERT INTO topic SELECT ...     both run until this prompt ends
SHOW STREAMS | TABLES | TOPICS | QUERIES, DESCRIBE name, DROP STREAM | TABLE | QUERY name, RESUME [name]
exit                             or Ctrl-D"""


def prompt(context: Context, showing: DisplayOptions, directory: Path, read: Callable[[str], str] = input) -> None:
    """Runs statements until the end of the input. A statement that fails is reported and discarded."""
    from ottla.spark.sql.failures import SqlError
    from ottla.spark.sql.parser import parse

    interrupts.ends_if_stuck = False
    say('end statements with ";"; "help" lists them')
    with history(directory):
        for text in statements(read):
            if text.strip().lower().rstrip(";").strip() == "help":
                say(HELP)
                continue
            try:
                with interrupts.orderly(), failures_in_words():
                    for statement in parse(text):
                        run_statement(context, statement, text, showing)
                    tell_queries(context)
            except KeyboardInterrupt:
                say("")
            except CommandError as failure:
                cause = failure.__cause__
                say(str(cause if isinstance(cause, SqlError) else failure))


def tell_queries(context: Context) -> None:
    """Reports the progress of the queries in the background. Each failed query is reported once."""
    for name, query in list(context.running.items()):
        try:
            query.poll()
        except Exception as failure:
            del context.running[name]
            query.stop()
            say(f"{name} has failed: {str(failure).splitlines()[0]}")
    for news in context.tend():
        tell_progress(news)


def statements(read: Callable[[str], str]) -> Iterator[str]:
    """Yields the input up to each semicolon. An empty line or Ctrl-C discards an unfinished statement."""
    from ottla.spark.sql.tokens import is_ended

    lines: list[str] = []
    while True:
        try:
            with interrupts.raising():
                line = read(MORE if lines else FIRST)
        except EOFError:
            return
        except KeyboardInterrupt:
            say("")
            lines = []
            continue
        word = line.strip().lower().rstrip(";")
        if not lines and word in LEAVING:
            return
        if not lines and word == "help":
            yield line
            continue
        lines = [*lines, line] if line.strip() else []
        if lines and is_ended("\n".join(lines)):
            yield "\n".join(lines)
            lines = []


@contextlib.contextmanager
def history(directory: Path) -> Iterator[None]:
    """Keeps one history for all prompts in this directory. Without readline there is none."""
    try:
        import readline
    except ImportError:
        yield
        return
    place = directory / "history"
    with contextlib.suppress(OSError):
        readline.read_history_file(place)
    readline.set_history_length(HISTORY_MAX)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            place.parent.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(place)
