"""`ottla cluster`: the health of a cluster, and the placement of its replicas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.client_security import client_security
from ottla.cli.cluster.reassign import reassign
from ottla.cli.failures import CommandError
from ottla.cli.output import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, count_text, print_json, print_table, run, size_text

if TYPE_CHECKING:
    from ottla.client.admin.cluster_report import ClusterReport, PartitionReport

commands = typer.Typer(help="Describes a cluster and moves its replicas.", no_args_is_help=True)
commands.command("reassign")(reassign)

PARTITIONS_SHOWN_MAX = 50


@commands.command()
def describe(
    check: Annotated[bool, typer.Option("--check", help="Fail if the cluster has a problem.")] = False,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Shows brokers, disks, partitions that lack replicas or a leader, and reassignments in progress."""

    async def work() -> ClusterReport:
        from ottla.client import Admin
        from ottla.client.admin.cluster_report import report_cluster

        async with Admin(bootstrap, client_id="ottla-cli", security=client_security()) as admin:
            return await report_cluster(admin)

    report = run(work())
    if as_json:
        print_json({**asdict(report), "is_healthy": report.is_healthy})
    else:
        _print(report)
    if check and not report.is_healthy:
        raise CommandError(f"the cluster is unhealthy: {'; '.join(_complaints(report))}")


def _print(report: ClusterReport) -> None:
    controller = "no controller" if report.controller is None else f"controller {report.controller}"
    print(
        f"cluster {report.cluster_id}  {controller}  {count_text(len(report.brokers), 'broker')}, "
        f"{count_text(report.topics, 'topic')}, {count_text(report.partitions, 'partition')}"
    )
    print_table(
        ["broker", "address", "machine", "rack", "leads", "replicas", "data", "disk free"],
        [
            (
                broker.id,
                f"{broker.host}:{broker.port}",
                broker.machine,
                broker.rack,
                broker.leaders,
                broker.replicas,
                None if broker.data_bytes is None else size_text(broker.data_bytes),
                _free_text(broker.disk_free_bytes, broker.disk_bytes),
            )
            for broker in report.brokers
        ],
        right=["broker", "leads", "replicas", "data", "disk free"],
    )
    _print_partitions(report)
    if report.reassignments:
        rows = [
            (f"{each.topic}-{each.partition}", _ids(each.replicas), _ids(each.adding), _ids(each.removing))
            for each in report.reassignments
        ]
        print_table(["reassignment", "replicas", "adding", "removing"], rows)
    for complaint in _complaints(report) or ["every partition has a leader and all its replicas in sync"]:
        print(complaint)


def _print_partitions(report: ClusterReport) -> None:
    troubled: dict[tuple[str, int], PartitionReport] = {
        (each.topic, each.partition): each
        for each in (*report.offline, *report.under_min_isr, *report.under_replicated)
    }
    if not troubled:
        return
    rows = [
        (
            f"{each.topic}-{each.partition}",
            _trouble(each),
            "none" if each.leader is None else each.leader,
            _ids(each.replicas),
            _ids(each.isr),
            each.min_insync,
        )
        for each in list(troubled.values())[:PARTITIONS_SHOWN_MAX]
    ]
    print_table(["partition", "trouble", "leader", "replicas", "in sync", "at least"], rows, right=["at least"])
    if len(troubled) > PARTITIONS_SHOWN_MAX:
        print(f"... and {len(troubled) - PARTITIONS_SHOWN_MAX} more; --json shows all")


def _trouble(each: PartitionReport) -> str:
    if each.is_offline:
        return "no leader"
    return "too few in sync" if each.is_under_min_isr else "not all in sync"


def _complaints(report: ClusterReport) -> list[str]:
    counted = [
        (len(report.offline), "without a leader: no writes, no reads"),
        (len(report.under_min_isr), "with fewer replicas in sync than min.insync.replicas: no writes with acks=all"),
        (len(report.under_replicated), "with replicas that are not in sync"),
    ]
    complaints = [f"{count_text(count, 'partition')} {what}" for count, what in counted if count]
    if report.away:
        complaints.append(f"offline: broker {_ids(report.away)}")
    return complaints + [f"broker {each.id}: {each.problem}" for each in report.brokers if each.problem is not None]


def _free_text(free_bytes: int | None, total_bytes: int | None) -> str | None:
    if free_bytes is None:
        return None
    return f"{size_text(free_bytes)} ({free_bytes / total_bytes:.0%})" if total_bytes else size_text(free_bytes)


def _ids(broker_ids: Sequence[int]) -> str:
    return ",".join(map(str, broker_ids))
