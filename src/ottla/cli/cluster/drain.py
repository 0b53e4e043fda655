"""`ottla broker drain`: moves replicas, or only leadership, off a broker before its removal or maintenance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.client_security import client_security
from ottla.cli.failures import CommandError
from ottla.cli.number_options import INT32_MAX, check_seconds
from ottla.cli.output import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, count_text, print_json, print_table, run, say

if TYPE_CHECKING:
    from ottla.client import Admin
    from ottla.client.admin.replica_plans import Plan, Replicas
    from ottla.client.consumer.types import TopicPartition

ROUNDS_MAX = 3
"""Topics created during the drain may place replicas on the broker, so the plan is made several times."""
ROWS_MAX = 100


def drain(
    broker_id: Annotated[
        int, typer.Argument(metavar="ID", min=0, max=INT32_MAX, help="The id of the broker.", show_default=False)
    ],
    leaders_only: Annotated[
        bool, typer.Option("--leaders-only", help="Move only leadership; the broker keeps its replicas.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the planned moves.")] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until everything has moved.")] = True,
    timeout: Annotated[
        float | None, typer.Option(min=0, callback=check_seconds, help="Fail after this many seconds.")
    ] = None,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Moves all replicas off a broker, which may be permanently gone, and waits until they have moved."""

    async def work() -> None:
        from ottla.client import Admin

        async with Admin(bootstrap, client_id="ottla-cli", security=client_security()) as admin:
            draining = BrokerDrain(admin, broker_id, dry_run=dry_run, wait=wait, timeout_s=timeout, as_json=as_json)
            await (draining.leaders() if leaders_only else draining.replicas())

    run(work())


class BrokerDrain:
    """One drain of a broker."""

    def __init__(
        self, admin: Admin, broker_id: int, *, dry_run: bool, wait: bool, timeout_s: float | None, as_json: bool
    ) -> None:
        self._admin = admin
        self._broker_id = broker_id
        self._dry_run = dry_run
        self._wait = wait
        self._timeout_s = timeout_s
        self._as_json = as_json

    async def replicas(self) -> None:
        """Moves the replicas of the broker to other brokers."""
        from ottla.cli.cluster.replica_moves import current_assignment, request_moves, wait_for_moves
        from ottla.client.admin.cluster_report import seats
        from ottla.client.admin.replica_plans import plan_drain

        assignment = await current_assignment(self._admin)
        await self._demand_known(assignment)
        moved: dict[TopicPartition, Replicas] = {}
        for _ in range(ROUNDS_MAX):
            plan = plan_drain(assignment, await seats(self._admin), self._broker_id)
            if not plan:
                break
            moved |= plan
            if self._dry_run:
                break
            say(f"moving {count_text(len(plan), 'replica')} of broker {self._broker_id} to other brokers")
            await request_moves(self._admin, plan)
            if not self._wait:
                break
            await wait_for_moves(self._admin, plan, self._timeout_s)
            assignment = await current_assignment(self._admin)
        self._print(moved, "moved off")

    async def leaders(self) -> None:
        """Moves leadership to other brokers.

        The broker's replicas go to the end of their replica lists, which makes another replica the preferred leader.
        That replica is then elected.
        """
        from ottla.cli.cluster.replica_moves import current_assignment, request_moves, wait_for_moves
        from ottla.client.admin.replica_plans import plan_leaders_away
        from ottla.client.consumer.types import TopicPartition

        assignment = await current_assignment(self._admin)
        await self._demand_known(assignment)
        partitions = [
            (TopicPartition(topic, each.index), each)
            for topic, described in (await self._admin.describe_all_partitions()).items()
            for each in described
        ]
        in_sync = {at: each.isr for at, each in partitions}
        plan = plan_leaders_away(assignment, in_sync, self._broker_id)
        if not self._dry_run:
            if plan:
                await request_moves(self._admin, plan)
                await wait_for_moves(self._admin, plan, self._timeout_s)
            led = [at for at, each in partitions if each.leader == self._broker_id or at in plan]
            failures = await self._admin.elect_leaders(led) if led else {}
            if failures:
                reasons = "; ".join(list(map(str, failures.values()))[:3])
                raise CommandError(f"{count_text(len(failures), 'leader')} could not be moved: {reasons}")
        self._print(plan, "no longer led by")
        stuck = [at for at, each in partitions if each.leader == self._broker_id and len(each.isr) < 2]
        if stuck:
            names = ", ".join(map(str, stuck[:3]))
            raise CommandError(f"no other replica is in sync to lead {count_text(len(stuck), 'partition')}: {names}")

    async def _demand_known(self, assignment: Mapping[TopicPartition, Replicas]) -> None:
        """Raises FailedError for an unknown broker, so that a mistyped id does not look like an empty broker."""
        alive = {broker.id for broker in (await self._admin.describe_cluster()).brokers}
        if self._broker_id not in alive and not any(self._broker_id in replicas for replicas in assignment.values()):
            known = ", ".join(map(str, sorted(alive)))
            raise CommandError(f"there is no broker {self._broker_id}, and it has no replicas; the brokers are {known}")

    def _print(self, plan: Plan, what: str) -> None:
        if self._as_json:
            from ottla.cli.cluster.reassignment_file import plan_as_json

            print_json({"broker": self._broker_id, "executed": not self._dry_run, "moved": plan_as_json(plan)})
            return
        if plan and self._dry_run:
            rows = [(str(at), ",".join(map(str, replicas))) for at, replicas in sorted(plan.items())]
            print_table(["partition", "new replicas"], rows[:ROWS_MAX])
        are = "is" if len(plan) == 1 else "are"
        verb = "would be" if self._dry_run else are if self._wait else f"{are} being"
        print(f"{count_text(len(plan), 'partition')} {verb} {what} broker {self._broker_id}")
