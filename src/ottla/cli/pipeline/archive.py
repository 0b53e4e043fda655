"""`ottla pipeline archive`: archives topics as Parquet exactly once, and verifies that the archive is complete."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.failures import CommandError
from ottla.cli.number_options import parse_duration_ms
from ottla.cli.output import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, count_text, print_json, print_table, say, size_text
from ottla.cli.pipeline.spark import DEFAULT_MASTER, Master, Settings, failures_in_words, spark_session
from ottla.cli.pipeline.stop import until_interrupted

if TYPE_CHECKING:
    from ottla.archive.manifest import Manifest
    from ottla.archive.store import Store
    from ottla.spark.jobs.archive import ArchivedBatch

commands = typer.Typer(
    help="Archives topics as Parquet files, merges small files, and verifies archives.", no_args_is_help=True
)

Directory = Annotated[
    str, typer.Argument(metavar="DIR", help="The archive: a directory, or s3://...", show_default=False)
]
FINDINGS_MAX = 200


@commands.command("run")
def run(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...", help="The topics to archive.", show_default=False)],
    into: Annotated[str, typer.Option("--into", metavar="DIR", help="The archive to write to.", show_default=False)],
    continuous: Annotated[bool, typer.Option("--continuous", help="Continue as records arrive, until Ctrl-C.")] = False,
    every: Annotated[str, typer.Option("--every", help="Wait this long for more records, with --continuous.")] = "10s",
    batch_offsets: Annotated[
        int, typer.Option("--batch-offsets", min=1, help="Archive at most this many offsets in a batch.")
    ] = 1_000_000,
    accept_loss: Annotated[
        bool,
        typer.Option("--accept-loss", help="Continue after records that retention deleted before they were archived."),
    ] = False,
    group: Annotated[
        str | None,
        typer.Option(
            "--group", help="Commit the archived offsets to this group, for topics that name it in ottla.archive.group."
        ),
    ] = None,
    merge: Annotated[bool, typer.Option("--merge/--no-merge", help="Merge small files at the end.")] = True,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    master: Master = DEFAULT_MASTER,
    conf: Settings = None,
) -> None:
    """Archives the current content of topics, starting where the archive ends."""
    interval_ms = parse_duration_ms(every, "--every")
    with failures_in_words():
        _say_who_waits(bootstrap, topics, group)
    with spark_session("archive", master, conf) as spark:
        from ottla.archive.store import Store
        from ottla.spark.jobs.archive import archive_available, archive_continuously
        from ottla.spark.jobs.archive_compaction import FILES_A_RUN_LEAVES, compact
        from ottla.spark.jobs.archive_group import ArchiveGroup
        from ottla.spark.jobs.live_log import BrokerLog

        store, log = Store(into), BrokerLog(bootstrap)
        tell = None if group is None else ArchiveGroup(bootstrap, group, say).tell

        def once() -> Iterator[ArchivedBatch]:
            yield from archive_available(
                spark, log, store, topics, offsets_max=batch_offsets, accept_loss=accept_loss, tell=tell
            )
            merged = compact(spark, store, files_min=FILES_A_RUN_LEAVES) if merge else None
            if merged is not None and merged.merged:
                say(f"merged {count_text(merged.merged, 'file')} into {merged.into}")

        if not continuous:
            _report(once(), as_json=as_json)
            return
        with until_interrupted() as stop:
            batches = archive_continuously(
                once, interval_s=interval_ms / 1000, wait=stop.wait, is_over=lambda: stop.is_wanted
            )
            _report(batches, as_json=as_json)


def _say_who_waits(bootstrap: str, topics: list[str], group: str | None) -> None:
    """Reports topics whose retention waits for another group.

    If nobody commits for that group, retention keeps everything up to its bound, which is easy to overlook.
    """
    from ottla.spark.jobs.archive_group import groups_that_wait

    for topic, waited_for in groups_that_wait(bootstrap, topics).items():
        if waited_for != group:
            say(
                f"retention of {topic} waits for the group {waited_for}; use --group {waited_for} to commit "
                "the archived offsets to it"
            )


def _report(batches: Iterator[ArchivedBatch], *, as_json: bool) -> None:
    rows = size_bytes = count = 0
    for batch in batches:
        rows, size_bytes, count = rows + batch.rows, size_bytes + batch.size_bytes, count + 1
        for at, each in batch.lost.items():
            say(f"LOST: {at} offsets {each} were deleted on the broker before they were archived")
        if as_json:
            print_json(_batch_as_json(batch))
            continue
        speed = batch.rows / batch.duration_s if batch.duration_s else 0.0
        say(
            f"batch {batch.commit_number}  {count_text(batch.rows, 'row')}  {speed:,.0f} rows/s  "
            f"lag {batch.lag:,}  {batch.duration_s:.2f} s"
        )
    if not as_json:
        print(
            f"archived {count_text(rows, 'record')} in {count_text(count, 'batch').replace('batchs', 'batches')}, "
            f"{size_text(size_bytes)}"
        )


def _batch_as_json(batch: ArchivedBatch) -> dict[str, Any]:
    def rows(ranges: Any) -> list[dict[str, Any]]:
        return [{"topic": at.topic, "partition": at.partition, **asdict(each)} for at, each in ranges.items()]

    return {**asdict(batch), "ranges": rows(batch.ranges), "lost": rows(batch.lost)}


@commands.command("verify")
def verify(
    directory: Directory,
    deep: Annotated[
        bool, typer.Option("--deep", help="Read every byte instead of only the footers of the files.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Finds gaps, overlaps, and files that are missing, duplicated or changed. The exit code is 1 if there are any."""
    with failures_in_words():
        from ottla.archive.store import Store
        from ottla.archive.verification import verify as verify_archive

        store = Store(directory)
        _check_is_archive(store)
        verdict = verify_archive(store, deep=deep)
    if as_json:
        print_json({**asdict(verdict), "faults": len(verdict.faults)})
    else:
        if verdict.findings:
            shown = verdict.findings[:FINDINGS_MAX]
            print_table(["finding", "where", "what"], [(each.kind, each.where, each.text) for each in shown])
            if len(verdict.findings) > FINDINGS_MAX:
                print(f"... and {len(verdict.findings) - FINDINGS_MAX} more; --json shows all")
        print(
            f"{count_text(verdict.file_count, 'file')}, {count_text(verdict.rows, 'record')}, "
            f"{count_text(verdict.offsets, 'offset')}: {count_text(len(verdict.faults), 'fault')}"
        )
    if verdict.faults:
        raise CommandError(f"the archive {directory} is incomplete or damaged")


@commands.command("show")
def show(directory: Directory, as_json: AsJson = False) -> None:
    """Shows which offsets of each partition are archived."""
    with failures_in_words():
        from ottla.archive.manifest import ManifestLog
        from ottla.archive.store import Store

        store = Store(directory)
        _check_is_archive(store)
        manifest = ManifestLog(store).load()
    entries = [_entry(manifest, at) for at in manifest.partitions()]
    if as_json:
        print_json(entries)
        return
    headings = ["partition", "offsets", "records", "files", "size"]
    rows = [
        (
            f"{each['topic']}-{each['partition']}",
            each["offsets"],
            f"{each['records']:,}",
            each["files"],
            size_text(each["size_bytes"]),
        )
        for each in entries
    ]
    print_table(headings, rows, right=["records", "files", "size"])


def _check_is_archive(store: Store) -> None:
    if not store.exists("_manifest"):
        raise CommandError(f"{store.root} is not an archive: it has no _manifest")


def _entry(manifest: Manifest, at: Any) -> dict[str, Any]:
    files = manifest.files_of(at)
    return {
        "topic": at.topic,
        "partition": at.partition,
        "offsets": ", ".join(map(str, manifest.archived(at))),
        "records": sum(each.rows for each in files),
        "files": len(files),
        "size_bytes": sum(each.size_bytes for each in files),
    }


@commands.command("compact")
def compact(
    directory: Directory,
    files_min: Annotated[
        int, typer.Option("--files-min", min=2, help="Merge only if there are at least this many small files.")
    ] = 2,
    master: Master = DEFAULT_MASTER,
    conf: Settings = None,
) -> None:
    """Merges small files. Readers see either the old files or the new ones, never both."""
    with failures_in_words():
        from ottla.archive.store import Store

        _check_is_archive(Store(directory))
    with spark_session("archive compact", master, conf) as spark:
        from ottla.spark.jobs.archive_compaction import compact as compact_archive

        done = compact_archive(spark, Store(directory), files_min=files_min)
    print(f"merged {count_text(done.merged, 'file')} into {done.into}, {count_text(done.rows, 'record')}")
