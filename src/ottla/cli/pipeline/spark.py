"""Starts and stops a Spark session for a command, and turns its failures into error messages."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.failures import CommandError
from ottla.cli.output import say
from ottla.cli.pipeline.spark_interrupts import interrupts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Master = Annotated[
    str, typer.Option("--master", help="Run Spark on this master: local[2], spark://host:7077, yarn, k8s://... .")
]
Settings = Annotated[
    list[str] | None, typer.Option("--conf", metavar="NAME=VALUE", help="Set a Spark property; repeatable.")
]
DEFAULT_MASTER = "local[2,4]"
_CAUSE = re.compile(r"^(?:\w+\.)*(\w+(?:Error|Exception)): (.+)$", re.MULTILINE)


@contextlib.contextmanager
def spark_session(app: str, master: str, settings: list[str] | None) -> Iterator[SparkSession]:
    """A Spark session. Raises FailedError, with a message for the user, for failures of the job or of Spark."""
    chosen = parse_settings(settings)
    with interrupts.installed(), failures_in_words():
        from pyspark.sql import SparkSession

        from ottla.spark.session import new_session

        is_mine = SparkSession.getActiveSession() is None  # a program that has a session already keeps it
        if is_mine:
            say(f"starting Spark ({master}) ...")
        if is_mine:
            _start_in_thread(lambda: new_session(f"ottla {app}", master=master, settings=chosen))
        spark = new_session(f"ottla {app}", master=master, settings=chosen)
        try:
            yield spark
        finally:
            if is_mine:
                spark.stop()


def _start_in_thread(start: Callable[[], object]) -> None:
    """Starts a session outside the main thread, where PySpark cannot replace the handler of Ctrl-C."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            start()
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=run, name="ottla-spark-start", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.2)
    if failures:
        raise failures[0]


@contextlib.contextmanager
def failures_in_words() -> Iterator[None]:
    """Turns missing packages and failures of jobs, Spark and the session into FailedError."""
    try:
        yield
    except ImportError as missing:
        raise CommandError(
            f"the pipeline needs PySpark and pyarrow: pip install 'ottla[spark]' ({missing})"
        ) from missing
    except Exception as failure:
        sentence = _sentence(failure)
        if sentence is None:
            raise
        raise CommandError(sentence) from failure


def _sentence(failure: Exception) -> str | None:
    """Returns the message for a failure of a job, Spark or the session, or None for any other failure."""
    from pyspark.errors import PySparkException

    from ottla.archive.failures import PipelineError
    from ottla.spark.session import JavaMissingError

    if isinstance(failure, PipelineError | JavaMissingError):
        return str(failure)
    if isinstance(failure, PySparkException):
        return _innermost(str(failure))
    return None


def _innermost(text: str) -> str:
    """Returns the root cause of a failure on a worker: the last exception in the Python traceback inside."""
    causes = [found for found in _CAUSE.findall(text) if not found[0].startswith("Spark")]
    if not causes:
        return f"Spark: {text.strip().splitlines()[0]}"
    name, sentence = causes[-1]
    return sentence if name.endswith("PipelineError") else f"Spark: {name}: {sentence}"


def parse_settings(settings: list[str] | None) -> dict[str, str]:
    """Parses `NAME=VALUE` settings of Spark."""
    return dict(_setting(text) for text in settings or [])


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise typer.BadParameter(f'"{text}" is not NAME=VALUE', param_hint="--conf")
    return name, value
