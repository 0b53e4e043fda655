"""`ottla transactions abort`: aborts a transaction. Only shows what would be aborted, unless `--execute` is given."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from ottla.cli.client_security import client_security
from ottla.cli.failures import CommandError
from ottla.cli.number_options import INT32_MAX, INT64_MAX
from ottla.cli.output import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, count_text, print_json, run, say

if TYPE_CHECKING:
    from ottla.client import Admin
    from ottla.client.admin.transaction_descriptions import OpenTransaction, TransactionDescription

Name = Annotated[str, typer.Argument(metavar="TRANSACTIONAL-ID", help="The transactional id.", show_default=False)]


class AbortOutcome(NamedTuple):
    """What was done, or what would be done."""

    sentences: list[str]
    as_json: dict[str, Any]


def abort(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[TRANSACTIONAL-ID]", help="Abort the transaction of this transactional id.", show_default=False
        ),
    ] = None,
    topic: Annotated[str | None, typer.Option("--topic", "-t", help="The topic of a hanging transaction.")] = None,
    partition: Annotated[int | None, typer.Option("--partition", "-p", min=0, max=INT32_MAX)] = None,
    start_offset: Annotated[
        int | None,
        typer.Option(
            "--start-offset",
            min=0,
            max=INT64_MAX,
            help="The offset at which the hanging transaction begins, as `list --hanging` shows it.",
        ),
    ] = None,
    fence: Annotated[
        bool,
        typer.Option(
            "--fence",
            help="Fence the producer of this id even if no transaction is open; the producer must start again.",
        ),
    ] = False,
    execute: Annotated[bool, typer.Option("--execute", help="Execute the abort instead of only showing it.")] = False,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Aborts a transaction and fences its producer, or aborts a hanging transaction of a partition. Needs --execute."""
    place = (topic, partition, start_offset)
    is_hanging = any(each is not None for each in place)
    if is_hanging == (name is not None) or (is_hanging and None in place):
        raise typer.BadParameter("give a transactional id, or --topic, --partition and --start-offset")
    if is_hanging and fence:
        raise typer.BadParameter("--fence needs a transactional id")

    async def work() -> AbortOutcome:
        from ottla.client import Admin

        async with Admin(bootstrap, client_id="ottla-cli", security=client_security()) as admin:
            if name is not None:
                return await _abort_coordinated(admin, name, fence, execute)
            assert topic is not None
            assert partition is not None
            assert start_offset is not None
            return await _abort_hanging(admin, topic, partition, start_offset, execute)

    done = run(work())
    if as_json:
        print_json({**done.as_json, "executed": execute})
    else:
        print("\n".join(done.sentences))
    if not execute:
        say("nothing was changed; add --execute to abort it")


# -- by its transactional id -------------------------------------------------------------------------------------------


async def _abort_coordinated(admin: Admin, name: str, fence: bool, execute: bool) -> AbortOutcome:
    found = await admin.describe_transaction(name)
    _check_can_be_aborted(found, fence)
    before = {
        **asdict(found),
        "partitions": [{"topic": at.topic, "partition": at.partition} for at in found.partitions],
    }
    if not execute:
        return AbortOutcome([_sentence(found)], before)
    fenced = await admin.fence_producer(name, timeout_ms=found.timeout_ms)
    what = "aborted; " if found.is_open else ""
    sentences = [_sentence(found), f"{what}its producer is fenced by epoch {fenced.producer_epoch}"]
    return AbortOutcome(sentences, {**before, "fenced_by": fenced._asdict()})


def _check_can_be_aborted(found: TransactionDescription, fence: bool) -> None:
    """Raises FailedError if there is nothing to abort, or if the commit is decided, which is final."""
    name = found.transactional_id
    if found.state == "PrepareCommit":
        raise CommandError(f'transactional id "{name}": its commit is already decided and cannot be undone')
    if not found.is_open and not fence:
        raise CommandError(f'transactional id "{name}": no transaction is open (it is {found.state})')


def _sentence(found: TransactionDescription) -> str:
    who = f"producer {found.producer_id}, epoch {found.producer_epoch}"
    if not found.is_open:
        return f"no transaction is open; {who} will be fenced"
    where = ", ".join(map(str, found.partitions[:10])) + (", ..." if len(found.partitions) > 10 else "")
    count = count_text(len(found.partitions), "partition")
    return f"to be aborted: the transaction of {who} in {count}{': ' if where else ''}{where}"


# -- one that hangs ----------------------------------------------------------------------------------------------------


async def _abort_hanging(admin: Admin, topic: str, partition: int, start_offset: int, execute: bool) -> AbortOutcome:
    found = await _find(admin, topic, partition, start_offset)
    coordinated = await admin.coordinated_by(found)
    if coordinated is not None:
        raise CommandError(
            f'{found.at}: the transaction belongs to transactional id "{coordinated.transactional_id}"; abort '
            f"it in all partitions with: ottla transactions abort {coordinated.transactional_id}"
        )
    who = f"producer {found.producer_id}, epoch {found.producer_epoch}"
    sentences = [f"to be aborted: the transaction of {who}, in {found.at} from offset {found.first_offset} on"]
    if execute:
        await admin.abort_in_partition(found)
        sentences.append(f"aborted in {found.at}")
    return AbortOutcome(sentences, asdict(found))


async def _find(admin: Admin, topic: str, partition: int, start_offset: int) -> OpenTransaction:
    from ottla.client.admin.transaction_descriptions import open_transaction
    from ottla.client.consumer.types import TopicPartition

    at = TopicPartition(topic, partition)
    states = (await admin.describe_producers([at]))[at]
    for state in states:
        if state.first_offset == start_offset:
            return open_transaction(at, state)
    begin = sorted(state.first_offset for state in states if state.first_offset is not None)
    there = f"; open transactions begin at {', '.join(map(str, begin))}" if begin else ""
    raise CommandError(f"{at}: no open transaction begins at {start_offset}{there}")
