"""`ottla groups`: lists consumer groups, shows their lag, resets their offsets, and deletes them."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.client_security import client_security
from ottla.cli.failures import CommandError
from ottla.cli.groups.offsets_plan import parse_topic
from ottla.cli.groups.reset import Name, Topics, reset
from ottla.cli.output import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, count_text, print_json, print_table, run

if TYPE_CHECKING:
    from ottla.client import Admin
    from ottla.client.admin.group_descriptions import GroupDescription, GroupListing
    from ottla.client.admin.group_lag import GroupLag, PartitionLag

commands = typer.Typer(help="Lists, describes, resets and deletes consumer groups.", no_args_is_help=True)
ROWS_MAX = 200


@commands.command("list")
def list_groups(
    state: Annotated[
        list[str] | None,
        typer.Option("--state", help="Show only groups in this state, such as Stable or Empty; repeatable."),
    ] = None,
    type_: Annotated[
        list[str] | None, typer.Option("--type", help="Show only groups of this type, classic or consumer; repeatable.")
    ] = None,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Lists groups with their members and their lag in records."""

    async def work() -> tuple[list[GroupListing], dict[str, GroupLag]]:
        from ottla.client import Admin

        async with Admin(bootstrap, client_id="ottla-cli", security=client_security()) as admin:
            listing = await admin.list_groups(states=state or (), types=type_ or ())
            return listing, await admin.group_lags([each.name for each in listing], in_seconds=False)

    listing, lags = run(work())
    entries = [_entry(each, lags.get(each.name)) for each in listing]
    if as_json:
        print_json(entries)
        return
    headings = ["group", "state", "type", "members", "coordinator", "lag"]
    rows = [
        (each["name"], each["state"], each["type"], each["members"], each["coordinator"], _number_text(each["lag"]))
        for each in entries
    ]
    print_table(headings, rows, right=["members", "coordinator", "lag"])


def _entry(listed: GroupListing, lag: GroupLag | None) -> dict[str, Any]:
    """Returns the JSON entry of a group. Members and lag are known only for groups that read topics."""
    members, records = (None, None) if lag is None else (len(lag.group.members), lag.lag)
    return {**asdict(listed), "members": members, "lag": records}


@commands.command()
def describe(
    name: Name,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Shows a group's members and its lag in each partition."""

    async def work() -> GroupLag:
        from ottla.client import Admin

        async with Admin(bootstrap, client_id="ottla-cli", security=client_security()) as admin:
            return await admin.group_lag(name)

    lag = run(work())
    if as_json:
        totals = {"lag": lag.lag, "lag_seconds": lag.lag_seconds}
        print_json({**_group_as_json(lag.group), **totals, "partitions": [asdict(each) for each in lag.partitions]})
    else:
        _print(lag)


def _group_as_json(group: GroupDescription) -> dict[str, Any]:
    members = [
        {**asdict(member), "assigned": [{"topic": at.topic, "partition": at.partition} for at in member.assigned]}
        for member in group.members
    ]
    return {**asdict(group), "members": members}


def _print(lag: GroupLag) -> None:
    group = lag.group
    assignor = f", {group.assignor}" if group.assignor else ""
    print(f"group {group.name}  {group.state}  {group.type}{assignor}  coordinator {group.coordinator}")
    if group.members:
        print_table(
            ["member", "instance", "client", "host", "partitions"],
            [
                (each.member_id, each.instance_id, each.client_id, each.host, len(each.assigned))
                for each in group.members
            ],
            right=["partitions"],
        )
    if lag.partitions:
        _print_partitions(lag.partitions)
    behind = "" if lag.lag_seconds is None or not lag.lag else f", {duration_text(lag.lag_seconds)} behind"
    print(f"{count_text(len(group.members), 'member')}, lag {count_text(lag.lag, 'record')}{behind}")


def _print_partitions(partitions: list[PartitionLag]) -> None:
    rows = [
        (
            str(each.at),
            "none" if each.committed is None else each.committed,
            each.end_offset,
            _number_text(each.lag),
            None if each.lag_seconds is None else duration_text(each.lag_seconds),
            each.member_id,
            _remark(each),
        )
        for each in partitions
    ]
    headings = ["partition", "committed", "end", "lag", "behind", "member", "remark"]
    print_table(headings, rows[:ROWS_MAX], right=["committed", "end", "lag", "behind"])
    if len(rows) > ROWS_MAX:
        print(f"... and {len(rows) - ROWS_MAX} more; --json shows all")


def _remark(each: PartitionLag) -> str | None:
    if each.problem is not None:
        return each.problem
    return f"{count_text(each.missed, 'record')} deleted unread" if each.missed else None


def _number_text(number: int | None) -> str | None:
    return None if number is None else f"{number:,}"


def duration_text(seconds: float) -> str:
    """Formats a duration with at most two units: 0 s, 1.5 s, 2 min 5 s, 3 h 20 min, 4 d 1 h."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds else "0 s"
    whole = int(seconds)
    for large, small, name, small_name in ((86_400, 3_600, "d", "h"), (3_600, 60, "h", "min"), (60, 1, "min", "s")):
        if whole >= large:
            rest = whole % large // small
            return f"{whole // large} {name}" + (f" {rest} {small_name}" if rest else "")
    raise AssertionError("a minute or more")


commands.command("reset")(reset)


@commands.command()
def delete(
    names: Annotated[list[str], typer.Argument(metavar="GROUP...", help="The groups to delete.", show_default=False)],
    topic: Topics = None,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="Succeed even if a group does not exist.")] = False,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Deletes empty groups with all their offsets; with --topic, deletes only the offsets of that topic."""
    try:
        topics = [parse_topic(text) for text in topic or []]
    except ValueError as mistake:
        raise typer.BadParameter(str(mistake)) from mistake
    if topics and len(names) != 1:
        raise typer.BadParameter("--topic needs exactly one group")

    async def work() -> tuple[list[str], list[str]]:
        from ottla.client import Admin

        async with Admin(bootstrap, client_id="ottla-cli", security=client_security()) as admin:
            if topics:
                return await _delete_offsets(admin, names[0], topics)
            return await _delete_groups(admin, names, if_exists)

    deleted, failures = run(work())
    if as_json:
        print_json({"deleted": deleted, "failures": failures})
    else:
        for each in deleted:
            print(f"deleted {each}")
    if failures:
        raise CommandError("; ".join(failures))


async def _delete_groups(admin: Admin, names: list[str], if_exists: bool) -> tuple[list[str], list[str]]:
    from ottla.client.errors import UnknownGroupError

    refused = await admin.delete_groups(names)
    failures = [str(each) for each in refused.values() if not (if_exists and isinstance(each, UnknownGroupError))]
    return [name for name in dict.fromkeys(names) if name not in refused], failures


async def _delete_offsets(
    admin: Admin, group: str, topics: list[tuple[str, list[int] | None]]
) -> tuple[list[str], list[str]]:
    """Deletes the committed offsets of the given topics that exist."""
    await admin.describe_group(group)
    committed = sorted(await admin.group_offsets(group))
    chosen = [
        at
        for at in committed
        if any(at.topic == name and (indexes is None or at.partition in indexes) for name, indexes in topics)
    ]
    if not chosen:
        named = ", ".join(name for name, _ in topics)
        raise CommandError(f'group "{group}": it has no committed offsets for {named}')
    refused = await admin.delete_group_offsets(group, chosen)
    return [f"{group} {at}" for at in chosen if at not in refused], [str(each) for each in refused.values()]
