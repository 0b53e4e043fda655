"""`ottla groups reset`: changes the offsets of an empty group. Shows the plan only, unless `--execute` is given."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.client_security import client_security
from ottla.cli.failures import CommandError
from ottla.cli.groups.offsets_plan import (
    OffsetChange,
    PartitionOffsets,
    ResetTarget,
    offsets_as_csv,
    parse_topic,
    plan_offsets,
    read_offsets,
)
from ottla.cli.number_options import INT64_MAX
from ottla.cli.output import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, count_text, print_json, print_table, run, say
from ottla.cli.time_options import since_ms

if TYPE_CHECKING:
    from ottla.client import Admin
    from ottla.client.admin.group_descriptions import GroupDescription, GroupOffset
    from ottla.client.consumer.types import TopicPartition

ROWS_MAX = 100
AIMS = "--to-earliest, --to-latest, --to-current, --to-offset, --to-time, --shift-by, --from-file"

Name = Annotated[str, typer.Argument(metavar="GROUP", help="The name of the group.", show_default=False)]
Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        "-t",
        metavar="TOPIC[:PARTITIONS]",
        help="Select a topic or some of its partitions, such as orders or orders:0,3,5-7; repeatable.",
    ),
]


@dataclass(frozen=True, slots=True)
class ResetRequest:
    """The offsets to reset, and their target."""

    group: str
    topics: list[tuple[str, list[int] | None]]
    aim: ResetTarget
    number: int = 0
    """The offset, the shift, or the time in milliseconds."""
    file: Path | None = None
    create: bool = False


def reset(
    name: Name,
    topic: Topics = None,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="Select all topics for which the group has committed offsets.")
    ] = False,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="Reset to the first available record.")] = False,
    to_latest: Annotated[
        bool, typer.Option("--to-latest", help="Reset to the end, skipping all existing records.")
    ] = False,
    to_current: Annotated[
        bool, typer.Option("--to-current", help="Keep the committed offsets, but move them into the range of the log.")
    ] = False,
    to_offset: Annotated[
        int | None, typer.Option("--to-offset", min=0, max=INT64_MAX, help="Reset to this offset.")
    ] = None,
    to_time: Annotated[
        str | None,
        typer.Option(
            "--to-time", help="Reset to the first record since a time: this long ago (90s, 10m, 2h, 1d) or an ISO time."
        ),
    ] = None,
    shift_by: Annotated[
        int | None,
        typer.Option(
            "--shift-by", min=-INT64_MAX, max=INT64_MAX, help="Move by this many records, backwards if negative."
        ),
    ] = None,
    from_file: Annotated[
        Path | None,
        typer.Option(
            "--from-file", "-f", help="Reset to the offsets in a file with topic,partition,offset on each line."
        ),
    ] = None,
    execute: Annotated[bool, typer.Option("--execute", help="Execute the plan instead of only showing it.")] = False,
    create: Annotated[bool, typer.Option("--create", help="Create the group if it does not exist.")] = False,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Changes the committed offsets of an empty group. Shows old and new offsets only, unless --execute is given."""
    aims = {
        ResetTarget.EARLIEST: to_earliest,
        ResetTarget.LATEST: to_latest,
        ResetTarget.CURRENT: to_current,
        ResetTarget.OFFSET: to_offset is not None,
        ResetTarget.TIME: to_time is not None,
        ResetTarget.SHIFT: shift_by is not None,
        ResetTarget.FILE: from_file is not None,
    }
    aim = _only(aims)
    _check_topics(aim, topic, all_topics)
    try:
        named = [parse_topic(text) for text in topic or []]
        time_ms = None if to_time is None else since_ms(to_time, time.time_ns() // 1_000_000)
    except ValueError as mistake:
        raise typer.BadParameter(str(mistake)) from mistake
    number = next((each for each in (to_offset, shift_by, time_ms) if each is not None), 0)
    wish = ResetRequest(name, named, aim, number, from_file, create)

    async def work() -> None:
        from ottla.client import Admin

        async with Admin(bootstrap, client_id="ottla-cli", security=client_security()) as admin:
            await _reset(admin, wish, execute, as_json)

    run(work())


def _only(aims: dict[ResetTarget, bool]) -> ResetTarget:
    chosen = [aim for aim, is_given in aims.items() if is_given]
    if len(chosen) != 1:
        raise typer.BadParameter(f"choose one of {AIMS}")
    return chosen[0]


def _check_topics(aim: ResetTarget, topics: list[str] | None, all_topics: bool) -> None:
    if aim is ResetTarget.FILE:
        if topics or all_topics:
            raise typer.BadParameter("--from-file selects the partitions; do not use --topic or --all-topics with it")
    elif bool(topics) == all_topics:
        raise typer.BadParameter("select topics with --topic, or all topics with committed offsets with --all-topics")


async def _reset(admin: Admin, wish: ResetRequest, execute: bool, as_json: bool) -> None:
    group = (await admin.describe_groups([wish.group])).get(wish.group)
    if group is None and not wish.create:
        raise CommandError(f'group "{wish.group}": the group does not exist; --create creates it with these offsets')
    if group is not None and group.members and execute:
        raise CommandError(_has_members(group))
    changes = await _plan(admin, wish)
    if as_json:
        offsets = [asdict(each) for each in changes]
        print_json({"group": wish.group, "executed": execute, "offsets": offsets})
    else:
        _print_changes(changes)
    if not execute:
        say("nothing was changed; add --execute to commit these offsets")
        if group is not None and group.members:
            say(f"--execute would fail now: {_has_members(group)}")
        return
    if not as_json and any(each.old is not None for each in changes):
        say("to undo this, save the following offsets and pass them to --from-file:")
        print(offsets_as_csv(changes), end="")
    await _commit(admin, wish.group, changes)
    say(f"{count_text(len(changes), 'offset')} of group {wish.group} committed")


def _has_members(group: GroupDescription) -> str:
    return (
        f'group "{group.name}" has {count_text(len(group.members), "member")}, which would not notice: stop them first '
        f"(the group is {group.state}; members that died leave when their session ends)"
    )


async def _commit(admin: Admin, group: str, changes: list[OffsetChange]) -> None:
    failures = await admin.alter_group_offsets(group, {(each.topic, each.partition): each.new for each in changes})
    if failures:
        raise CommandError("; ".join(map(str, failures.values())))


async def _plan(admin: Admin, wish: ResetRequest) -> list[OffsetChange]:
    from ottla.client.consumer.types import READ_UNCOMMITTED

    committed = await admin.group_offsets(wish.group)
    found = read_offsets(wish.file, wish.group) if wish.file is not None else {}
    wanted = sorted(found) if wish.file is not None else await _partitions(admin, wish, committed)
    ends = await admin.log_ends(wanted, isolation_level=READ_UNCOMMITTED)
    places = []
    for at in wanted:
        log = ends[at]
        if log.first is None or log.end is None:
            if not wish.topics and wish.file is None:  # --all-topics: a committed offset of a deleted topic is no error
                say(f"{at} is skipped: {log.problem}")
                continue
            raise CommandError(f"{at}: {log.problem}")
        old = committed.get(at)
        places.append(PartitionOffsets(at, None if old is None else old.offset, log.first, log.end))
    if not places:
        raise CommandError(f'group "{wish.group}": it has no committed offsets; select topics with --topic')
    if wish.aim is ResetTarget.TIME:
        times = await admin.offsets_for_time([place.at for place in places], wish.number)
        found = {at: each.offset for at, each in times.items()}
    return plan_offsets(places, wish.aim, wish.number, found)


async def _partitions(
    admin: Admin, wish: ResetRequest, committed: dict[TopicPartition, GroupOffset]
) -> list[TopicPartition]:
    from ottla.client.consumer.types import TopicPartition

    if not wish.topics:
        return sorted(committed)
    chosen: set[TopicPartition] = set()
    for name, indexes in wish.topics:
        there = [each.index for each in await admin.describe_partitions(name)]
        missing = [index for index in indexes or [] if index not in there]
        if missing:
            raise CommandError(
                f"{name}-{missing[0]}: it does not exist; the topic has partitions 0 to {len(there) - 1}"
            )
        chosen.update(TopicPartition(name, index) for index in (there if indexes is None else indexes))
    return sorted(chosen)


def _print_changes(changes: list[OffsetChange]) -> None:
    rows = [
        (
            f"{each.topic}-{each.partition}",
            "none" if each.old is None else each.old,
            each.new,
            None if each.old is None else f"{each.new - each.old:+d}",
            f"{each.first_offset} to {each.end_offset}",
            each.remark,
        )
        for each in changes
    ]
    headings = ["partition", "committed", "new", "change", "log", "remark"]
    print_table(headings, rows[:ROWS_MAX], right=["committed", "new", "change"])
    if len(rows) > ROWS_MAX:
        print(f"... and {len(rows) - ROWS_MAX} more; --json shows all")
    moved = sum(not each.is_none for each in changes)
    print(f"{count_text(len(changes), 'partition')}, {moved} with another offset than before")
