"""`ottla consume`: prints a topic's records, on its own or as a member of a group."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeVar

import typer

from ottla.cli.client_security import client_security
from ottla.cli.failures import CommandError
from ottla.cli.number_options import INT32_MAX, INT64_MAX, check_seconds
from ottla.cli.output import DEFAULT_BOOTSTRAP, Bootstrap, run, say
from ottla.cli.records.consume_group import GroupProtocol, Membership, consume_in_group
from ottla.cli.records.consume_limits import Limits
from ottla.cli.records.record_format import DEFAULT_FORMAT, FIELDS_HELP, Part, compile_format, to_json_line
from ottla.cli.time_options import since_ms

if TYPE_CHECKING:
    from ottla.client import Consumer, TopicPartition


At = TypeVar("At")


class Start(NamedTuple):
    """The position to start from. At most one field is set; if none is, reading starts at the end."""

    from_beginning: bool
    offset: int | None
    time_ms: int | None


def consume(
    topic: Annotated[str, typer.Argument(help="The topic to read.", show_default=False)],
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Print all existing records, then new ones.")
    ] = False,
    offset: Annotated[
        int | None,
        typer.Option(
            min=-INT64_MAX, max=INT64_MAX, help="Start at this offset; -10 is ten before the end of each partition."
        ),
    ] = None,
    since: Annotated[str | None, typer.Option(help="Start this long ago (90s, 10m, 2h, 1d) or at an ISO time.")] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", min=0, max=INT32_MAX, help="Read only this partition; repeatable."),
    ] = None,
    max_records: Annotated[
        int | None, typer.Option("--max-records", "-n", min=0, help="Stop after this many records.")
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(min=0, callback=check_seconds, help="Stop if no record arrives for this many seconds."),
    ] = None,
    until_end: Annotated[bool, typer.Option("--until-end", "-e", help="Stop at the current end of the topic.")] = False,
    format_: Annotated[
        str, typer.Option("--format", "-f", help=f"Print records in this format: {FIELDS_HELP}, \\n, \\t.")
    ] = DEFAULT_FORMAT,
    as_json: Annotated[bool, typer.Option("--json", "-J", help="Print one JSON object per line.")] = False,
    show_null: Annotated[
        bool, typer.Option("--show-null", "-Z", help="Print NULL for keys and values that are null.")
    ] = False,
    committed: Annotated[
        bool, typer.Option("--read-committed", help="Read only records of committed transactions.")
    ] = False,
    group: Annotated[
        str | None,
        typer.Option("--group", "-g", help="Read as a member of this group, from its committed offsets, and commit."),
    ] = None,
    protocol: Annotated[
        GroupProtocol, typer.Option(help="The group protocol, which must be the same for all members.")
    ] = GroupProtocol.CLASSIC,
    instance_id: Annotated[
        str | None, typer.Option("--instance-id", help="The name that this member keeps across restarts.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Prints records as they arrive, until Ctrl-C or one of the limits. By default, prints new records only.

    With --group, commits what was printed, so that the next call continues after it. Then --from-beginning applies only
    to partitions for which the group has no committed offset.
    """
    if sum((from_beginning, offset is not None, since is not None)) > 1:
        raise typer.BadParameter("choose one of --from-beginning, --offset and --since")
    if group is not None and (partition or offset is not None or since is not None):
        reason = "the group determines the partitions and offsets (`ottla groups reset` changes them)"
        raise typer.BadParameter(f"--group cannot be combined with --partition, --offset or --since: {reason}")
    if group is None and instance_id is not None:
        raise typer.BadParameter("--instance-id needs --group")
    try:
        start = Start(from_beginning, offset, None if since is None else since_ms(since, time.time_ns() // 1_000_000))
        part = to_json_line if as_json else compile_format(format_, null=b"NULL" if show_null else b"")
    except ValueError as mistake:
        raise typer.BadParameter(str(mistake)) from mistake
    limits = Limits(max_records, timeout, until_end)
    if group is not None:
        membership = Membership(group, protocol, instance_id, from_beginning)
        run(consume_in_group(topic, membership, limits, part, committed, bootstrap))
    else:
        run(_consume(topic, partition, start, limits, part, committed, bootstrap))


async def _consume(
    topic: str,
    partitions: list[int] | None,
    start: Start,
    limits: Limits,
    part: Part,
    committed: bool,
    bootstrap: str,
) -> None:
    from ottla.client import Consumer, TopicPartition

    consumer = Consumer(
        bootstrap,
        security=client_security(),
        auto_offset_reset="earliest" if start.from_beginning else "latest",
        isolation_level="read_committed" if committed else "read_uncommitted",
        client_id="ottla-cli",
    )
    async with consumer:
        known = await consumer.partitions(topic)
        chosen = known if not partitions else [TopicPartition(topic, index) for index in partitions]
        await _begin(consumer, topic, chosen, start, only_these=bool(partitions))
        await _print_all(consumer, chosen, limits, part)


async def _begin(
    consumer: Consumer, topic: str, chosen: list[TopicPartition], start: Start, *, only_these: bool
) -> None:
    if only_these:
        consumer.assign(chosen)
    else:
        consumer.subscribe([topic])
    if start.offset is not None:
        begins, ends = await consumer.beginning_offsets(chosen), await consumer.end_offsets(chosen)
        for at, offset in offsets_in_range(start.offset, begins, ends, say).items():
            consumer.seek(at, offset)
    elif start.time_ms is not None:
        found = await consumer.offsets_for_time(dict.fromkeys(chosen, start.time_ms))
        ends = await consumer.end_offsets(chosen)
        for at, result in found.items():
            consumer.seek(at, ends[at] if result is None else result.offset)
    elif not start.from_beginning:
        await consumer.seek_to_end(*chosen)


def offsets_in_range(
    offset: int, begins: Mapping[At, int], ends: Mapping[At, int], tell: Callable[[str], None]
) -> dict[At, int]:
    """Returns the offset at which each partition is read. A negative offset counts from the end.

    Raises FailedError if the offset is past the end of every partition. Reports each partition that lacks the offset
    through `tell`.
    """
    if offset >= 0 and all(offset > end for end in ends.values()):
        where = ", ".join(f"{at} ends at {end}" for at, end in ends.items())
        raise CommandError(f"there is no offset {offset} yet: {where}")
    chosen: dict[At, int] = {}
    for at, end in ends.items():
        begin = begins[at]
        wanted = offset if offset >= 0 else max(begin, end + offset)
        chosen[at] = min(max(wanted, begin), end)
        if wanted > end:
            tell(f"{at} ends at {end}, before offset {offset}; reading only its new records")
        elif wanted < begin:
            tell(f"{at} starts at {begin}; the records before it, from offset {offset} on, were deleted")
    return chosen


async def _print_all(consumer: Consumer, chosen: list[TopicPartition], limits: Limits, part: Part) -> None:
    """Prints records until a limit is reached. With `at_end`, records that arrive after the start are not printed."""
    ends = await consumer.end_offsets(chosen) if limits.at_end else {}
    out = sys.stdout.buffer
    printed = 0
    last_record_s = time.monotonic()
    while not limits.reached(printed):
        if limits.at_end and await _all_reached(consumer, ends):
            return
        records = await consumer.fetch_records(limits.wanted(printed), limits.wait_ms(last_record_s))
        for record in records:
            if not limits.at_end or record.offset < ends.get(record.at, 0):
                out.write(part(record))
                printed += 1
        out.flush()
        if records:
            last_record_s = time.monotonic()
        elif limits.idle_too_long(last_record_s):
            return


async def _all_reached(consumer: Consumer, ends: dict[TopicPartition, int]) -> bool:
    for at, end in ends.items():
        if await consumer.position(at) < end:
            return False
    return True
