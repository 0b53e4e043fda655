"""`ottla log`: inspects the files of a log without a broker."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.failures import CommandError
from ottla.cli.number_options import INT32_MAX
from ottla.cli.output import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, count_text, print_json, size_text
from ottla.cli.records.record_format import iso_time, json_bytes
from ottla.protocol.model.topic_names import check_name

if TYPE_CHECKING:
    from ottla.cli.log.segment_scan import Problem, ScannedBatch

commands = typer.Typer(help="Reads the files of a log without a broker.", no_args_is_help=True)

Target = Annotated[
    Path,
    typer.Argument(
        metavar="PATH|TOPIC",
        help="A segment file, a partition's directory, a data directory, or the name of a topic.",
        show_default=False,
    ),
]
Data = Annotated[
    Path | None,
    typer.Option(
        help="Look for a topic in this data directory (default: the data directory of `ottla up`).", show_default=False
    ),
]
Partition = Annotated[
    int | None, typer.Option("--partition", "-p", min=0, max=INT32_MAX, help="Read only this partition of a topic.")
]


@commands.command()
def dump(
    path: Target,
    records: Annotated[bool, typer.Option("--records", "-r", help="Print the records of each batch too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per batch, one per line.")] = False,
    from_offset: Annotated[int, typer.Option(min=0, help="Start with the batch that contains this offset.")] = 0,
    max_batches: Annotated[int | None, typer.Option("--max-batches", "-n", min=1)] = None,
    partition: Partition = None,
    data: Data = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Prints the batches of a log. For a topic in a cluster, prints one replica of each partition."""
    from ottla.cli.log.segment_scan import ScannedBatch, scan_partition

    shown = 0
    for segments in _segments(path, partition, data, bootstrap, all_replicas=False):
        for found in scan_partition(segments):
            if isinstance(found, ScannedBatch):
                if found.header.last_offset < from_offset:
                    continue
                _print_batch(found, records, as_json)
            elif found.offset >= from_offset:
                _print_problem(found, as_json)
            shown += 1
            if max_batches is not None and shown >= max_batches:
                return


@commands.command()
def verify(
    path: Target,
    records: Annotated[bool, typer.Option("--records", "-r", help="Decode every record too.")] = False,
    allow_gaps: Annotated[
        bool, typer.Option("--allow-gaps", help="Do not report missing offsets as damage, for compacted topics.")
    ] = False,
    partition: Partition = None,
    data: Data = None,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Checks the checksum, lengths and offsets of every batch. Fails on damage, naming file, position and offset."""
    from ottla.cli.log.segment_scan import Problem, ScannedBatch, scan_partition

    batches = record_count = size_bytes = files = 0
    problems: list[Problem] = []
    for segments in _segments(path, partition, data, bootstrap, all_replicas=True):
        files += len(segments)
        for found in scan_partition(segments):
            problem = found if isinstance(found, Problem) else (_undecodable(found) if records else None)
            if problem is not None:
                problems.append(problem)
                if not as_json:
                    _print_problem(problem, as_json)
            if isinstance(found, ScannedBatch):
                batches += 1
                record_count += found.header.record_count
                size_bytes += found.header.size_bytes
    damage = [each for each in problems if each.is_damage and not (allow_gaps and each.kind == "gap")]
    if as_json:
        counts = {"files": files, "batches": batches, "records": record_count, "bytes": size_bytes}
        print_json({"ok": not damage, **counts, "problems": [_problem_json(each) for each in problems]})
    else:
        amount = f"{count_text(batches, 'batch').replace('batchs', 'batches')}, {count_text(record_count, 'record')}"
        print(f"{count_text(files, 'file')}, {amount}, {size_text(size_bytes)}: {'damaged' if damage else 'intact'}")
    if damage:
        raise CommandError(f"{count_text(len(damage), 'damaged place')} in {path}")


def _segments(
    path: Path, partition: int | None, data: Path | None, bootstrap: str, *, all_replicas: bool
) -> list[list[Path]]:
    from ottla.cli.log.segment_scan import find_segments
    from ottla.cli.log.topics import one_replica_each, topic_directories
    from ottla.cli.up.commands import default_data_dir

    name = str(path)
    if path.exists() or check_name(name) is not None:
        if partition is not None or data is not None:
            raise typer.BadParameter("--partition and --data need the name of a topic, not a path")
        found = find_segments(path)
    else:
        directories = topic_directories(name, data or default_data_dir(), partition, bootstrap)
        chosen = directories if all_replicas else one_replica_each(directories)
        found = [segments for each in chosen for segments in find_segments(each)]
    if not found:
        raise CommandError(f"{path} has no segment files, whose names are 20 digits and .log")
    return found


def _undecodable(found: ScannedBatch) -> Problem | None:
    """Returns a problem if the checksum is valid but the records cannot be decoded, which is the producer's fault."""
    from ottla.cli.log.segment_scan import Problem
    from ottla.protocol.records.errors import CorruptRecords
    from ottla.protocol.records.record import decode_batch

    try:
        decode_batch(found.data)
    except CorruptRecords as damage:
        return Problem("damage", found.path, found.position, found.header.base_offset, str(damage), len(found.data))
    return None


def _print_batch(found: ScannedBatch, with_records: bool, as_json: bool) -> None:
    entry = _batch_json(found)
    if with_records:
        entry["records"] = _records_json(found)
    if as_json:
        print_json(entry)
        return
    header = found.header
    flags = "".join(f" {name}" for name in ("transactional", "control", "log_append_time") if entry[name])
    producer = (
        f" producer {header.producer_id}/{header.producer_epoch}/{header.base_sequence}" if header.has_producer else ""
    )
    print(
        f"{found.path.name}:{found.position} offsets {header.base_offset}-{header.last_offset} "
        f"records {header.record_count} bytes {header.size_bytes} {entry['compression']} epoch {header.leader_epoch} "
        f"{iso_time(header.base_timestamp)}..{iso_time(header.max_timestamp)}{producer}{flags}"
    )
    for record in entry.get("records", ()):
        if "error" in record:
            print(f"    cannot be decoded: {record['error']}")
            continue
        headers = f" headers {record['headers']}" if record["headers"] else ""
        print(
            f"    {record['offset']} {record['timestamp_ms']} key {record['key']!r} value {record['value']!r}{headers}"
        )


def _batch_json(found: ScannedBatch) -> dict[str, Any]:
    from ottla.protocol.records.codecs import Compression

    header = found.header
    known = header.compression in set(Compression)
    return {
        "file": str(found.path),
        "position": found.position,
        "size_bytes": header.size_bytes,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "record_count": header.record_count,
        "leader_epoch": header.leader_epoch,
        "compression": Compression(header.compression).name if known else f"codec {header.compression}",
        "base_timestamp_ms": header.base_timestamp,
        "max_timestamp_ms": header.max_timestamp,
        "log_append_time": header.is_log_append_time,
        "transactional": header.is_transactional,
        "control": header.is_control,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "crc": f"{header.crc:08x}",
    }


def _records_json(found: ScannedBatch) -> list[dict[str, Any]]:
    from ottla.protocol.records.errors import CorruptRecords
    from ottla.protocol.records.record import decode_batch

    try:
        decoded = decode_batch(found.data)
    except CorruptRecords as damage:
        return [{"error": str(damage)}]
    return [
        {
            "offset": record.offset,
            "timestamp_ms": record.timestamp_ms,
            "key": json_bytes(record.key),
            "value": json_bytes(record.value),
            "headers": [[name, json_bytes(value)] for name, value in record.headers],
        }
        for record in decoded
    ]


def _problem_json(problem: Problem) -> dict[str, Any]:
    return {
        "kind": problem.kind,
        "file": str(problem.path),
        "position": problem.position,
        "offset": problem.offset,
        "size_bytes": problem.size_bytes,
        "reason": problem.reason,
    }


def _print_problem(problem: Problem, as_json: bool) -> None:
    if as_json:
        print_json(_problem_json(problem))
    elif problem.kind == "unfinished":
        print(f"unfinished end: {problem} (an interrupted write; the broker truncates it at its start)")
    else:
        print(f"{problem.kind}: {problem}")
