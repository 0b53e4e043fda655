"""`ottla cluster reassign`: moves replicas of partitions, in the manner of `kafka-reassign-partitions`.

A plan comes from a file, from `--topic --partition --replicas`, or from `--balance`. It is only shown, unless
`--execute`, `--verify` or `--cancel` is given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.client_security import client_security
from ottla.cli.failures import CommandError
from ottla.cli.number_options import INT32_MAX, check_seconds
from ottla.cli.output import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    count_text,
    print_json,
    print_table,
    run,
    say,
)

if TYPE_CHECKING:
    from ottla.cli.cluster.reassignment_file import Targets
    from ottla.client import Admin
    from ottla.client.consumer.types import TopicPartition

ROWS_MAX = 100


@dataclass(frozen=True, slots=True)
class PlanSource:
    """The source of the plan."""

    file: Path | None
    topics: list[str]
    partition: int | None
    replicas: list[int] | None
    balance: bool
    on_brokers: list[int] | None

    @property
    def is_given(self) -> bool:
        """True if an option says what to move; without one there is nothing to plan."""
        return self.file is not None or self.balance or self.replicas is not None or self.partition is not None


def reassign(
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", help="Read the plan from a file in the JSON format of kafka-reassign-partitions."),
    ] = None,
    topic: Annotated[
        list[str] | None, typer.Option("--topic", "-t", help="Select a topic; repeatable with --balance.")
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, max=INT32_MAX, help="Select a partition of the topic.")
    ] = None,
    replicas: Annotated[
        str | None,
        typer.Option(
            "--replicas",
            "-r",
            metavar="ID,ID,...",
            help="Assign these replicas to the partition, the preferred leader first.",
        ),
    ] = None,
    balance: Annotated[
        bool,
        typer.Option(
            "--balance", help="Plan an even distribution of replicas and leaders for all topics, or for --topic."
        ),
    ] = False,
    brokers: Annotated[
        str | None, typer.Option("--brokers", metavar="ID,ID,...", help="Use only these brokers with --balance.")
    ] = None,
    execute: Annotated[bool, typer.Option("--execute", help="Execute the plan instead of only showing it.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait after --execute until all replicas have moved.")] = False,
    timeout: Annotated[
        float | None,
        typer.Option(min=0, callback=check_seconds, help="Fail if --wait takes more than this many seconds."),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Check whether the plan is complete, and fail if it is not.")
    ] = False,
    cancel: Annotated[
        bool,
        typer.Option(
            "--cancel", help="Cancel the reassignments of the plan that are in progress, or all of them with --all."
        ),
    ] = (False),
    everything: Annotated[bool, typer.Option("--all", help="Cancel every reassignment, with --cancel.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="List the reassignments in progress.")] = False,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Changes the replicas of partitions. Only shows the plan, unless --execute, --verify or --cancel is given."""
    wish = PlanSource(file, topic or [], partition, _ids(replicas, "--replicas"), balance, _ids(brokers, "--brokers"))
    _check_call(wish, [execute, verify, cancel, list_], cancels_all=cancel and everything)

    async def work() -> None:
        from ottla.client import Admin

        async with Admin(bootstrap, client_id="ottla-cli", security=client_security()) as admin:
            if list_:
                await _list(admin, as_json)
            elif cancel:
                await _cancel(admin, None if everything else await _targets(admin, wish, any_replicas=True), as_json)
            elif verify:
                await _verify(admin, await _targets(admin, wish), as_json)
            else:
                changed = await _show_and_execute(admin, await _targets(admin, wish), execute, wait, timeout, as_json)
                if balance and execute and wait and changed:
                    await admin.elect_leaders(changed)  # replicas that cannot lead yet will lead once they are in sync

    run(work())


def _ids(text: str | None, option: str) -> list[int] | None:
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise typer.BadParameter(f"{option} takes broker ids, such as 1,2,3, not {text!r}")
    return [int(part) for part in parts]


def _check_call(wish: PlanSource, actions: Sequence[bool], *, cancels_all: bool) -> None:
    if sum(actions) > 1:
        raise typer.BadParameter("choose one of --execute, --verify, --cancel and --list")
    sources = [wish.file is not None, wish.balance, wish.replicas is not None or wish.partition is not None]
    if sum(sources) > 1:
        raise typer.BadParameter("choose one plan: --file, --balance, or --topic, --partition and --replicas")
    if (wish.replicas is not None or wish.partition is not None) and len(wish.topics) != 1:
        raise typer.BadParameter("--partition and --replicas need exactly one --topic")
    is_listing = actions[3]
    if not wish.is_given and not is_listing and not cancels_all:
        raise typer.BadParameter("give a plan: --file, --balance, or --topic, --partition and --replicas")
    if wish.on_brokers is not None and not wish.balance:
        raise typer.BadParameter("--brokers needs --balance")


async def _targets(admin: Admin, wish: PlanSource, *, any_replicas: bool = False) -> Targets:
    """Returns the plan. Set `any_replicas` if only its partitions matter."""
    from ottla.cli.cluster.reassignment_file import read_plan
    from ottla.cli.cluster.replica_moves import current_assignment
    from ottla.client.admin.cluster_report import seats
    from ottla.client.admin.replica_plans import plan_balance
    from ottla.client.consumer.types import TopicPartition

    if wish.file is not None:
        return read_plan(wish.file)
    assignment = await current_assignment(admin)
    if missing := [name for name in wish.topics if not any(at.topic == name for at in assignment)]:
        raise CommandError(f'topic "{missing[0]}": it does not exist')
    if wish.balance:
        chosen = {at: now for at, now in assignment.items() if not wish.topics or at.topic in wish.topics}
        return plan_balance(chosen, await seats(admin), wish.on_brokers)
    (topic,) = wish.topics
    places = [at for at in assignment if at.topic == topic and wish.partition in (None, at.partition)]
    if not places:
        raise CommandError(f"{topic}-{wish.partition}: this partition does not exist")
    if wish.replicas is None:
        if not any_replicas:
            raise typer.BadParameter("choose the replicas with --replicas")
        return {at: assignment[at] for at in places}
    return dict.fromkeys((TopicPartition(*at) for at in places), tuple(wish.replicas))


async def _show_and_execute(
    admin: Admin, targets: Targets, execute: bool, wait: bool, timeout_s: float | None, as_json: bool
) -> list[TopicPartition]:
    """Shows the plan, executes it if asked to, and returns the partitions that change."""
    from ottla.cli.cluster.reassignment_file import plan_as_json
    from ottla.cli.cluster.replica_moves import current_assignment, request_moves, wait_for_moves

    assignment = await current_assignment(admin)
    now = {at: assignment[at] for at in targets if at in assignment}
    if missing := [at for at in targets if at not in assignment]:
        raise CommandError(f"{missing[0]}: this partition does not exist")
    changes = {at: replicas for at, replicas in targets.items() if now[at] != replicas}
    if as_json:
        print_json({"current": plan_as_json(now), "proposed": plan_as_json(targets), "executed": execute})
    else:
        _print_changes(now, changes)
    if execute and changes:
        if not as_json:
            say("to undo this, save the following plan and pass it to --file:")
            print_json(plan_as_json({at: now[at] for at in changes}))
        await request_moves(admin, changes)
        if wait:
            await wait_for_moves(admin, changes, timeout_s)
            say("all replicas have moved")
        else:
            say("the replicas are being moved; --list shows the progress, --verify checks the result")
    elif changes:
        say("nothing was changed; add --execute to apply the plan")
    return list(changes)


def _print_changes(
    now: Mapping[TopicPartition, Sequence[int]], changes: Mapping[TopicPartition, Sequence[int]]
) -> None:
    if not changes:
        print("all replicas are already assigned as planned")
        return
    rows = [
        (str(at), _text(now[at]), _text(replicas), _text([each for each in replicas if each not in now[at]]))
        for at, replicas in sorted(changes.items())
    ]
    print_table(["partition", "current replicas", "new replicas", "copied to"], rows[:ROWS_MAX])
    if len(rows) > ROWS_MAX:
        print(f"... and {len(rows) - ROWS_MAX} more; --json shows all")
    copies = sum(len(set(replicas) - set(now[at])) for at, replicas in changes.items())
    print(f"{count_text(len(changes), 'partition')} changed, {count_text(copies, 'replica')} copied")


async def _verify(admin: Admin, targets: Targets, as_json: bool) -> None:
    from ottla.cli.cluster.replica_moves import progress_of

    progress = await progress_of(admin, targets)
    if as_json:
        print_json(asdict(progress))
    else:
        states = {"done": progress.done, "in progress": progress.under_way, "not as planned": progress.elsewhere}
        rows = [(str(at), state) for state, places in states.items() for at in places]
        print_table(["partition", "state"], rows[:ROWS_MAX])
    unfinished = len(progress.under_way) + len(progress.elsewhere)
    if unfinished:
        raise CommandError(
            f"{count_text(unfinished, 'partition')} not moved yet: {len(progress.under_way)} in progress, "
            f"{len(progress.elsewhere)} not as planned"
        )


async def _cancel(admin: Admin, targets: Targets | None, as_json: bool) -> None:
    from ottla.cli.cluster.replica_moves import request_moves

    moving = await admin.list_partition_reassignments()
    places = [at for at in sorted(moving) if targets is None or at in targets]
    if places:
        await request_moves(admin, dict.fromkeys(places))
    if as_json:
        print_json({"cancelled": places})
    else:
        print(f"cancelled: {', '.join(map(str, places)) or 'no reassignment was in progress'}")


async def _list(admin: Admin, as_json: bool) -> None:
    moving = sorted((await admin.list_partition_reassignments()).items())
    if as_json:
        print_json([{"topic": at.topic, "partition": at.partition, **asdict(each)} for at, each in moving])
    elif not moving:
        print("no reassignment is in progress")
    else:
        rows = [(str(at), _text(each.replicas), _text(each.adding), _text(each.removing)) for at, each in moving]
        print_table(["reassignment", "replicas", "adding", "removing"], rows)


def _text(broker_ids: Sequence[int]) -> str:
    return ",".join(map(str, broker_ids))
