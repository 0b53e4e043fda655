"""`ottla pipeline materialize` and `restore`: tables of change logs, in their current or an earlier state."""

from __future__ import annotations

import re
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ottla.cli.output import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, count_text, print_json, print_table, say
from ottla.cli.pipeline.spark import DEFAULT_MASTER, Master, Settings, failures_in_words, spark_session
from ottla.cli.time_options import since_ms

if TYPE_CHECKING:
    from ottla.spark.jobs.restore import Point, RestoredTable
    from ottla.spark.jobs.table_history import History
    from ottla.spark.jobs.tables import Snapshot

_OFFSETS = re.compile(r"\s*\d+:\d+\s*(,\s*\d+:\d+\s*)*")
Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic with the change log.", show_default=False)]
EnvelopeName = Annotated[
    Literal["plain", "debezium"],
    typer.Option(
        "--envelope",
        help="The format of changes: plain (a key and a JSON value; a tombstone deletes) or debezium (its "
        "JSON envelope).",
    ),
]
Archive = Annotated[
    str | None,
    typer.Option("--archive", metavar="DIR", help="Read the topic from this archive, written by 'archive run'."),
]
Offline = Annotated[
    bool, typer.Option("--offline", help="Connect to no broker, and use only the archive and snapshots.")
]
Incomplete = Annotated[
    bool, typer.Option("--incomplete", help="Use the remaining changes if some were deleted before they were archived.")
]
Schema = Annotated[
    str | None,
    typer.Option(
        "--schema",
        metavar="DDL",
        help="Use these fields and Spark types, such as 'id BIGINT, name STRING', instead of inferring them.",
    ),
]


def materialize(
    topic: Topic,
    table: Annotated[
        str,
        typer.Option(
            "--table", metavar="DIR", help="The directory with the snapshots of the table.", show_default=False
        ),
    ],
    envelope: EnvelopeName = "plain",
    archive: Archive = None,
    bad_records: Annotated[
        Literal["fail", "dead-letter"],
        typer.Option("--bad-records", help="Stop at records that are not changes, or set them aside with the reason."),
    ] = "fail",
    schema: Schema = None,
    incomplete: Incomplete = False,
    offline: Offline = False,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    master: Master = DEFAULT_MASTER,
    conf: Settings = None,
) -> None:
    """Adds a snapshot to a table, made from the latest snapshot and all later changes."""
    _check_history(archive, offline)
    with failures_in_words():
        history = _history(topic, archive, None if offline else bootstrap)
    with spark_session("materialize", master, conf) as spark:
        from ottla.archive.store import Store
        from ottla.spark.jobs.changes import Envelope, parse_columns
        from ottla.spark.jobs.materialize import MaterializeOptions
        from ottla.spark.jobs.materialize import materialize as run
        from ottla.spark.jobs.tables import Table

        begun = time.monotonic()
        columns = None if schema is None else parse_columns(schema)
        options = MaterializeOptions(bad_records == "dead-letter", incomplete, columns)
        made = run(spark, history, Table(Store(table)), Envelope(envelope), options)
        _report_snapshot(made, table, time.monotonic() - begun, as_json=as_json)


def _report_snapshot(made: Snapshot | None, table: str, duration_s: float, *, as_json: bool) -> None:
    if as_json:
        print_json(None if made is None else asdict(made))
        return
    if made is None:
        print("nothing has changed since the last snapshot")
        return
    speed = made.changes / duration_s if duration_s else 0.0
    say(f"{count_text(made.changes, 'change')}  {speed:,.0f} changes/s  {duration_s:.2f} s")
    if made.bad_records:
        say(f"{count_text(made.bad_records, 'record')} set aside with their reasons in {table}/{made.dead_letters}")
    late = {partition: offset for partition, offset in made.begins.items() if offset}
    if late:
        say(f"INCOMPLETE: the history starts at {_offsets_text(late)}")
    print(f"snapshot {made.number}: {count_text(made.rows, 'row')}, up to {_offsets_text(made.covers)}")
    print(f"{table}/{made.path}")


RestorePoint = Annotated[
    str,
    typer.Option(
        "--at",
        metavar="TIME|OFFSET",
        help="Restore everything before this point: 2026-01-31T12:00, 10m (ago), 1200, 0:1200,1:900, or end.",
        show_default=False,
    ),
]


def restore(
    topic: Topic,
    at: RestorePoint,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            "--into",
            metavar="PLACE",
            help="Write to parquet:DIR, csv:FILE, sqlite:FILE#TABLE, postgresql://user@host/database#TABLE.",
            show_default=False,
        ),
    ],
    envelope: EnvelopeName = "plain",
    table: Annotated[
        str | None, typer.Option("--table", metavar="DIR", help="Start from the snapshots in this directory.")
    ] = None,
    archive: Archive = None,
    key_column: Annotated[str, typer.Option("--key-column", help="The name of the key column.")] = "_key",
    origin: Annotated[
        bool,
        typer.Option(
            "--origin", help="Add the partition, offset and timestamp of the change that each row comes from."
        ),
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing output.")] = False,
    bad_records: Annotated[
        Literal["fail", "skip"],
        typer.Option("--bad-records", help="Stop at records that are not changes, or skip them."),
    ] = "fail",
    schema: Schema = None,
    incomplete: Incomplete = False,
    offline: Offline = False,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    master: Master = DEFAULT_MASTER,
    conf: Settings = None,
) -> None:
    """Writes a table as it was before a time or an offset, from snapshots, the archive and the live log."""
    _check_history(archive, offline)
    with failures_in_words():
        from ottla.spark.jobs.restore_targets import check_is_free, parse_target, table_for_output, write_output

        check_point(at)
        target = parse_target(to, topic)
        check_is_free(target, overwrite=overwrite)
        history = _history(topic, archive, None if offline else bootstrap)
        point = _point(at, len(history.partitions))
    with spark_session("restore", master, conf) as spark:
        from ottla.archive.store import Store
        from ottla.spark.jobs.changes import Envelope, parse_columns
        from ottla.spark.jobs.restore import restore as run
        from ottla.spark.jobs.tables import Table

        begun = time.monotonic()
        restored = run(
            spark,
            history,
            point,
            Envelope(envelope),
            table=None if table is None else Table(Store(table)),
            skip_bad=bad_records == "skip",
            incomplete=incomplete,
            columns=None if schema is None else parse_columns(schema),
        )
        rows = table_for_output(restored.rows, key_column=key_column, with_origin=origin)
        write_output(rows, target, overwrite=overwrite)
        _report_restored(restored, target.shown, time.monotonic() - begun, as_json=as_json)


def _history(topic: str, archive: str | None, bootstrap: str | None) -> History:
    from ottla.archive.store import Store
    from ottla.spark.jobs.live_log import BrokerLog
    from ottla.spark.jobs.table_history import History

    log = None if bootstrap is None else BrokerLog(bootstrap)
    return History.open(topic, archive=None if archive is None else Store(archive), log=log)


def _check_history(archive: str | None, offline: bool) -> None:
    if offline and archive is None:
        raise typer.BadParameter("--offline reads only the archive; choose it with --archive", param_hint="--offline")


def check_point(text: str) -> None:
    """Checks the syntax of --at, before anything about the topic is known."""
    if text == "end" or text.isdecimal() or _OFFSETS.fullmatch(text):
        return
    _time(text)


def _time(text: str) -> int:
    try:
        return since_ms(text, time.time_ns() // 1_000_000)
    except ValueError as mistake:
        raise typer.BadParameter(f"{mistake}, nor offsets (1200, or 0:1200,1:900)", param_hint="--at") from mistake


def _point(text: str, partition_count: int) -> Point:
    from ottla.spark.jobs.restore import AtEnd, AtTime, parse_offsets

    if text == "end":
        return AtEnd()
    offsets = parse_offsets(text, partition_count)
    if offsets is not None:
        return offsets
    return AtTime(_time(text))


def _report_restored(restored: RestoredTable, path: str, duration_s: float, *, as_json: bool) -> None:
    snapshot = restored.snapshot
    if as_json:
        print_json(_restored_as_json(restored, path))
        return
    begins = "no snapshot" if snapshot is None else f"snapshot {snapshot.number} ({count_text(snapshot.rows, 'row')})"
    print_table(
        ["from", "offsets"],
        [(begins, None), ("archive", f"{restored.from_archive:,}"), ("live log", f"{restored.from_log:,}")],
        right=["offsets"],
    )
    if restored.bad_records:
        say(f"{count_text(restored.bad_records, 'record')} skipped that are not changes")
    if snapshot is not None and any(snapshot.begins.values()):
        say("INCOMPLETE: the start of the log was already deleted when the snapshot was taken")
    cut = {at.partition: offset for at, offset in restored.cut.items()}
    print(
        f"{count_text(restored.row_count, 'row')} restored to the state before {_offsets_text(cut)}, in "
        f"{duration_s:.2f} s: {path}"
    )


def _restored_as_json(restored: RestoredTable, path: str) -> dict[str, Any]:
    return {
        "path": path,
        "rows": restored.row_count,
        "before": {str(at.partition): offset for at, offset in restored.cut.items()},
        "snapshot": None if restored.snapshot is None else restored.snapshot.number,
        "offsets_from_archive": restored.from_archive,
        "offsets_from_log": restored.from_log,
        "bad_records": restored.bad_records,
    }


def _offsets_text(offsets: dict[int, int]) -> str:
    named = ", ".join(f"{partition}:{offset}" for partition, offset in sorted(offsets.items()))
    return f"offsets {named}"
