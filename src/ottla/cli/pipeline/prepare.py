"""`ottla pipeline prepare`: makes later starts of Spark faster."""

from __future__ import annotations

from typing import Annotated

import typer

from ottla.cli.output import say, size_text
from ottla.cli.pipeline.spark import failures_in_words


def prepare(
    again: Annotated[bool, typer.Option("--again", help="Repeat the preparation if it was done before.")] = False,
) -> None:
    """Makes Spark start faster by recording which Java classes it loads, once for each version of Java and PySpark."""
    with failures_in_words():
        from ottla.spark.jvm.class_archive import prepare as make

        say("running Spark once to record the classes that it loads ...")
        place = make(again=again)
    print(f"{place}, {size_text(place.stat().st_size)}; local sessions will use it")
