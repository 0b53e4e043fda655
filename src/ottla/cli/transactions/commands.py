"""`ottla transactions`: lists open and hanging transactions with their duration, and aborts them."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.client_security import client_security
from ottla.cli.failures import CommandError
from ottla.cli.groups.commands import duration_text
from ottla.cli.groups.offsets_plan import parse_topic
from ottla.cli.number_options import INT64_MAX, parse_duration_ms
from ottla.cli.output import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, count_text, print_json, print_table, run, say
from ottla.cli.transactions.abort import Name, abort

if TYPE_CHECKING:
    from ottla.client import Admin
    from ottla.client.admin.transaction_descriptions import (
        HangingTransactions,
        OpenTransaction,
        ProducerState,
        TransactionDescription,
        TransactionListing,
    )

commands = typer.Typer(help="Lists, describes and aborts transactions.", no_args_is_help=True)
ROWS_MAX = 200


# -- list ------------------------------------------------------------------------------------------------------------


@commands.command("list")
def list_transactions(
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state", help="Show only transactional ids in this state, such as Ongoing or Empty; repeatable."
        ),
    ] = None,
    producer_id: Annotated[
        list[int] | None,
        typer.Option("--producer-id", min=0, max=INT64_MAX, help="Show only this producer id; repeatable."),
    ] = None,
    min_duration: Annotated[
        str | None,
        typer.Option("--min-duration", help="Show only transactions that have been open for this long: 90s, 10m, 2h."),
    ] = None,
    hanging: Annotated[
        bool,
        typer.Option(
            "--hanging", help="List transactions that are open in a partition and that no coordinator will end."
        ),
    ] = False,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC[:PARTITIONS]",
            help="Search only this topic or these partitions, with --hanging; repeatable.",
        ),
    ] = None,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Lists transactional ids with their state and the age of their open transactions."""
    least_ms = _least_ms(min_duration)
    if hanging:
        if state:
            raise typer.BadParameter("a hanging transaction has no state, because no coordinator knows it")
        _list_hanging(topic or [], producer_id or [], least_ms, as_json, bootstrap)
        return
    if topic:
        raise typer.BadParameter("--topic needs --hanging; `describe` shows the partitions of a transaction")
    _list_coordinated(_states(state or []), producer_id or [], least_ms, as_json, bootstrap)


def _least_ms(text: str | None) -> int | None:
    return None if text is None else parse_duration_ms(text, "--min-duration")


def _states(names: list[str]) -> list[str]:
    from ottla.client.admin.transaction_descriptions import STATES

    known = {state.lower(): state for state in STATES}
    for name in names:
        if name.lower() not in known:
            raise typer.BadParameter(f'"{name}" is not a state; the states are {", ".join(STATES)}')
    return [known[name.lower()] for name in names]


def _list_coordinated(
    states: list[str], producer_ids: list[int], least_ms: int | None, as_json: bool, bootstrap: str
) -> None:
    async def work() -> tuple[list[TransactionListing], dict[str, TransactionDescription]]:
        from ottla.client import Admin
        from ottla.client.admin.transaction_descriptions import OPEN

        async with Admin(bootstrap, client_id="ottla-cli", security=client_security()) as admin:
            listed = await admin.list_transactions(states=states, producer_ids=producer_ids, open_for_ms=least_ms)
            opened = [each.transactional_id for each in listed if each.state in OPEN]
            return listed, await admin.describe_transactions(opened)

    listed, described = run(work())
    entries = [_entry(each, described.get(each.transactional_id)) for each in listed]
    if as_json:
        print_json(entries)
        return
    headings = ["transactional id", "state", "producer", "coordinator", "open for", "partitions"]
    rows = [
        (
            each["transactional_id"],
            each["state"],
            each["producer_id"],
            each["coordinator"],
            _duration(each["open_for_ms"]),
            each["partition_count"],
        )
        for each in entries
    ]
    print_table(headings, rows, right=["producer", "coordinator", "open for", "partitions"])


def _entry(listed: TransactionListing, described: TransactionDescription | None) -> dict[str, Any]:
    open_for_ms = None if described is None else described.open_for_ms(_now_ms())
    partition_count = None if described is None or not described.is_open else len(described.partitions)
    return {**asdict(listed), "open_for_ms": open_for_ms, "partition_count": partition_count}


def _list_hanging(
    topics: list[str], producer_ids: list[int], least_ms: int | None, as_json: bool, bootstrap: str
) -> None:
    try:
        named = [parse_topic(text) for text in topics]
    except ValueError as mistake:
        raise typer.BadParameter(str(mistake)) from mistake

    async def work() -> HangingTransactions:
        from ottla.client import Admin

        async with Admin(bootstrap, client_id="ottla-cli", security=client_security()) as admin:
            return await admin.find_hanging_transactions(await _partitions(admin, named) if named else None)

    found, unknown = run(work())
    now_ms = _now_ms()
    wanted = [
        each
        for each in found
        if (not producer_ids or each.producer_id in producer_ids)
        and (least_ms is None or now_ms - each.last_timestamp_ms >= least_ms)
    ]
    if as_json:
        entries = [{**asdict(each), "last_written_ms_ago": now_ms - each.last_timestamp_ms} for each in wanted]
        print_json(entries)
    else:
        _print_hanging(wanted, now_ms)
    for at, why in sorted(unknown.items()):
        say(f"could not query {at}: {why}")


async def _partitions(admin: Admin, topics: list[tuple[str, list[int] | None]]) -> list[tuple[str, int]]:
    chosen: list[tuple[str, int]] = []
    for name, indexes in topics:
        there = [each.index for each in await admin.describe_partitions(name)]
        missing = [index for index in indexes or [] if index not in there]
        if missing:
            raise CommandError(
                f"{name}-{missing[0]}: it does not exist; the topic has partitions 0 to {len(there) - 1}"
            )
        chosen += [(name, index) for index in (there if indexes is None else indexes)]
    return chosen


def _print_hanging(found: list[OpenTransaction], now_ms: int) -> None:
    rows = [
        (
            str(each.at),
            each.producer_id,
            each.producer_epoch,
            each.first_offset,
            each.coordinator_epoch,
            _duration(max(0, now_ms - each.last_timestamp_ms)),
        )
        for each in found
    ]
    headings = ["partition", "producer", "epoch", "start offset", "coordinator epoch", "last written"]
    print_table(headings, rows, right=headings[1:])
    if found:
        first = found[0]
        say(
            "consumers with read_committed cannot read past these start offsets. To abort one: ottla "
            f"transactions abort --topic {first.topic} --partition {first.partition} --start-offset "
            f"{first.first_offset}"
        )


# -- describe ----------------------------------------------------------------------------------------------------------


@commands.command()
def describe(name: Name, as_json: AsJson = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """Shows a transactional id: its producer, its open transaction, and where that begins in each partition."""

    async def work() -> tuple[TransactionDescription, list[ProducerState | None]]:
        from ottla.client import Admin

        async with Admin(bootstrap, client_id="ottla-cli", security=client_security()) as admin:
            described = await admin.describe_transaction(name)
            found = await admin.describe_producers(described.partitions)
            return described, [_of_producer(found[at], described.producer_id) for at in described.partitions]

    described, states = run(work())
    open_for_ms = described.open_for_ms(_now_ms())
    partitions = [
        {"topic": at.topic, "partition": at.partition, "start_offset": None if state is None else state.first_offset}
        for at, state in zip(described.partitions, states, strict=True)
    ]
    if as_json:
        print_json({**asdict(described), "open_for_ms": open_for_ms, "partitions": partitions})
    else:
        _print(described, open_for_ms, partitions)


def _of_producer(states: list[ProducerState], producer_id: int) -> ProducerState | None:
    return next((each for each in states if each.producer_id == producer_id), None)


def _print(described: TransactionDescription, open_for_ms: int | None, partitions: list[dict[str, Any]]) -> None:
    print(f"transactional id {described.transactional_id}  {described.state}  coordinator {described.coordinator}")
    print(f"producer {described.producer_id}, epoch {described.producer_epoch}")
    timeout = duration_text(described.timeout_ms / 1000)
    if open_for_ms is None:
        print(f"no open transaction; the timeout of its transactions is {timeout}")
        return
    print(f"open for {_duration(open_for_ms)}, timeout {timeout}")
    rows = [
        (
            f"{each['topic']}-{each['partition']}",
            "nothing yet" if each["start_offset"] is None else each["start_offset"],
        )
        for each in partitions
    ]
    print_table(["partition", "start offset"], rows[:ROWS_MAX], right=["start offset"])
    if len(rows) > ROWS_MAX:
        print(f"... and {len(rows) - ROWS_MAX} more; --json shows all")
    print(count_text(len(rows), "partition"))


commands.command("abort")(abort)


def _duration(milliseconds: int | None) -> str | None:
    return None if milliseconds is None else duration_text(milliseconds / 1000)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
