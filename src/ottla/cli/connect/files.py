"""`ottla connect file-sink`."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from ottla.cli.connect.connector_runs import run_connector
from ottla.cli.connect.postgres import DeadLetters, Name, UntilEnd
from ottla.cli.number_options import check_seconds
from ottla.cli.output import DEFAULT_BOOTSTRAP, Bootstrap


def file_sink(
    name: Name,
    topics: Annotated[
        list[str],
        typer.Option("--topic", metavar="TOPIC", help="Write this topic to files; repeatable.", show_default=False),
    ],
    into: Annotated[
        str,
        typer.Option(
            "--into",
            metavar="DIR|URL",
            help="Write the files to a directory, or to s3://bucket/path.",
            show_default=False,
        ),
    ],
    file_format: Annotated[
        Literal["jsonl", "parquet"], typer.Option("--format", help="Choose the format of the files.")
    ] = "jsonl",
    records_per_file: Annotated[
        int, typer.Option("--records", min=1, help="Write at most this many records to a file.")
    ] = 100_000,
    every_s: Annotated[
        float, typer.Option("--every", min=0.1, callback=check_seconds, help="Finish a file after this many seconds.")
    ] = 60.0,
    dead_letters: DeadLetters = None,
    until_end: UntilEnd = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Writes topics to files of JSON lines or Parquet, on a disk or in an object store, each record exactly once."""
    settings = {
        "topics": topics,
        "into": into,
        "format": file_format,
        "records_per_file": records_per_file,
        "commit_every_s": every_s,
        "dead_letters": dead_letters,
        "until_end": until_end,
    }
    run_connector(name, "file-sink", bootstrap, settings)
