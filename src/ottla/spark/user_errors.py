"""Reports errors that a user can act on as one sentence, without a traceback.

Spark runs a source in its own Python processes. When a method raises, the process writes the traceback to the JVM, and
Spark includes that text in its exception. With SPARK_HIDE_TRACEBACK in its environment, the process writes only the
type and the message. (`spark.sql.execution.pyspark.udf.hideTraceback.enabled` sets it for a whole session.) A process
exits after it reports an exception, so setting the variable just before affects only this exception.

An unexpected exception keeps its traceback.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

from ottla.client.errors import ClientError
from ottla.spark.options_text import OptionError
from ottla.spark.source.schema import ColumnError

log = logging.getLogger("ottla.spark")

USER_ERRORS = (ClientError, ColumnError, OptionError)
HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"
IN_WORKER = "SPARK_PYTHON_RUNTIME"
"""Set in each Python process that Spark starts, but not in the process of the driver program."""

P = ParamSpec("P")
T = TypeVar("T")


def in_one_sentence(method: Callable[P, T]) -> Callable[P, T]:
    """Decorates a method that Spark calls: user errors of the method, or of its iterator, are reported as one
    sentence."""

    @functools.wraps(method)
    def call(*arguments: P.args, **named: P.kwargs) -> T:
        try:
            returned = method(*arguments, **named)
        except USER_ERRORS as error:
            hide_traceback(error)
            raise
        return _checked(returned) if isinstance(returned, Iterator) else returned  # type: ignore[return-value] # T is an iterator

    return call


def _checked(items: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from items
    except USER_ERRORS as error:
        hide_traceback(error)
        raise


def hide_traceback(error: BaseException) -> None:
    """Makes this process report the error without a traceback."""
    log.debug("reported without a traceback", exc_info=error)
    if IN_WORKER in os.environ:
        os.environ[HIDE_TRACEBACK] = "1"
