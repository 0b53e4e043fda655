"""`ottla topics`: creates, lists, describes, alters and deletes topics."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.client_security import client_security
from ottla.cli.failures import CommandError
from ottla.cli.number_options import INT16_MAX, INT32_MAX, check_count_or_default
from ottla.cli.output import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, count_text, print_json, print_table, run, size_text

if TYPE_CHECKING:
    from ottla.client.admin.descriptions import ConfigEntry, TopicDescription

commands = typer.Typer(help="Creates, lists, describes, alters and deletes topics.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="The name of the topic.", show_default=False)]
Configs = Annotated[
    list[str] | None,
    typer.Option("--config", "-c", metavar="NAME=VALUE", help="Set a configuration of the topic; repeatable."),
]


def parse_pairs(entries: list[str] | None, option: str) -> dict[str, str]:
    """Parses the `name=value` entries of a repeated option."""
    pairs: dict[str, str] = {}
    for entry in entries or []:
        name, separator, value = entry.partition("=")
        if not separator or not name:
            raise typer.BadParameter(f"{option} takes NAME=VALUE, not {entry!r}")
        pairs[name] = value
    return pairs


def parse_assignment(text: str | None) -> list[list[int]] | None:
    """Parses the format of kafka-topics: `1:2,2:3` puts partition 0 on brokers 1 and 2, and partition 1 on 2 and 3."""
    if text is None:
        return None
    try:
        return [[int(broker_id) for broker_id in partition.split(":")] for partition in text.split(",")]
    except ValueError:
        reason = f"--replica-assignment takes broker ids such as 1:2,2:3 (one list for each partition), not {text!r}"
        raise typer.BadParameter(reason) from None


@commands.command()
def create(
    name: Name,
    partitions: Annotated[
        int,
        typer.Option(
            "--partitions",
            "-p",
            callback=check_count_or_default,
            max=INT32_MAX,
            help="The number of partitions; -1 is the broker's default.",
        ),
    ] = -1,
    replication_factor: Annotated[
        int,
        typer.Option(
            callback=check_count_or_default, max=INT16_MAX, help="The number of replicas; -1 is the broker's default."
        ),
    ] = -1,
    replica_assignment: Annotated[
        str | None,
        typer.Option(
            metavar="ID:ID,ID:ID,...",
            help="Assign these brokers to each partition, the preferred leader first, such as 1:2,2:3.",
        ),
    ] = None,
    config: Configs = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Succeed even if the topic already exists.")
    ] = False,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Creates a topic."""
    configs = parse_pairs(config, "--config")
    assignment = parse_assignment(replica_assignment)
    if assignment is not None and (partitions, replication_factor) != (-1, -1):
        raise typer.BadParameter("--replica-assignment cannot be combined with --partitions or --replication-factor")

    async def work() -> tuple[bool, TopicDescription]:
        from ottla.client import Admin
        from ottla.client.errors import TopicExistsError

        async with Admin(bootstrap, client_id="ottla-cli", security=client_security()) as admin:
            created = True
            try:
                await admin.create_topic(
                    name,
                    partitions=partitions,
                    replication_factor=replication_factor,
                    assignment=assignment,
                    configs=configs,
                )
            except TopicExistsError:
                if not if_not_exists:
                    raise
                created = False
            return created, await admin.describe_topic(name)

    created, description = run(work())
    if as_json:
        print_json({"created": created, **asdict(description)})
    else:
        done = "created" if created else "already exists:"
        print(f"{done} {name} with {count_text(len(description.partitions), 'partition')}")


@commands.command("list")
def list_topics(
    internal: Annotated[bool, typer.Option("--internal", help="Include the internal topics of the brokers.")] = False,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Lists the topics."""
    from ottla.client import Admin
    from ottla.client.admin.descriptions import TopicListing

    async def work() -> list[TopicListing]:
        async with Admin(bootstrap, client_id="ottla-cli", security=client_security()) as admin:
            return await admin.list_topics(internal=internal)

    listing = run(work())
    if as_json:
        print_json([asdict(topic) for topic in listing])
        return
    rows = [(topic.name, topic.partition_count, topic.replication_factor, topic.id) for topic in listing]
    print_table(["topic", "partitions", "replicas", "id"], rows, right=["partitions", "replicas"])


@commands.command()
def describe(
    name: Name,
    all_configs: Annotated[
        bool, typer.Option("--all", help="Include configurations that have their default value.")
    ] = False,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Shows a topic's partitions, offsets, sizes and configuration."""
    from ottla.client import Admin

    async def work() -> tuple[TopicDescription, list[ConfigEntry]]:
        async with Admin(bootstrap, client_id="ottla-cli", security=client_security()) as admin:
            return await admin.describe_topic(name), await admin.describe_configs(name)

    description, configs = run(work())
    shown = [entry for entry in configs if all_configs or not entry.is_default]
    if as_json:
        print_json({**asdict(description), "configs": [asdict(entry) for entry in shown]})
        return
    print(f"topic {description.name}  id {description.id}")
    print_table(
        ["partition", "leader", "epoch", "replicas", "in sync", "first offset", "end offset", "size"],
        [
            (
                each.index,
                "none" if each.leader is None else each.leader,
                each.leader_epoch,
                ",".join(map(str, each.replicas)),
                ",".join(map(str, each.isr)),
                each.first_offset,
                each.end_offset,
                None if each.size_bytes is None else size_text(each.size_bytes),
            )
            for each in description.partitions
        ],
        right=["partition", "leader", "epoch", "first offset", "end offset", "size"],
    )
    if shown:
        print_table(["configuration", "value", "from"], [(each.name, each.value, each.source) for each in shown])


@commands.command()
def alter(
    name: Name,
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", min=1, max=INT32_MAX, help="The new total number of partitions.")
    ] = None,
    config: Configs = None,
    delete_config: Annotated[
        list[str] | None,
        typer.Option("--delete-config", metavar="NAME", help="Reset a configuration to its default; repeatable."),
    ] = None,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Adds partitions, or sets or resets configurations."""
    changes = parse_pairs(config, "--config")
    resets = list(delete_config or [])
    if partitions is None and not changes and not resets:
        raise typer.BadParameter("nothing to change; use --partitions, --config or --delete-config")
    if both := sorted(set(changes) & set(resets)):
        raise typer.BadParameter(f"{', '.join(both)} cannot be both set and reset")

    async def work() -> TopicDescription:
        from ottla.client import Admin

        async with Admin(bootstrap, client_id="ottla-cli", security=client_security()) as admin:
            if changes or resets:
                await admin.alter_configs(name, set_values=changes, delete=resets)
            if partitions is not None:
                await admin.create_partitions(name, partitions)
            return await admin.describe_topic(name)

    description = run(work())
    if as_json:
        print_json(asdict(description))
    else:
        settings = ", ".join(f"{key}={value}" for key, value in description.configs.items()) or "defaults only"
        print(f"altered {name}: {count_text(len(description.partitions), 'partition')}, {settings}")


@commands.command()
def delete(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="The topics to delete.", show_default=False)],
    if_exists: Annotated[bool, typer.Option("--if-exists", help="Succeed even if a topic does not exist.")] = False,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Deletes topics with all their records."""

    async def work() -> tuple[list[str], list[str]]:
        from ottla.client import Admin, ClientError
        from ottla.client.errors import UnknownTopicError

        deleted: list[str] = []
        failures: list[str] = []
        async with Admin(bootstrap, client_id="ottla-cli", security=client_security()) as admin:
            for name in names:
                try:
                    await admin.delete_topic(name)
                    deleted.append(name)
                except UnknownTopicError as failure:
                    failures += [] if if_exists else [str(failure)]
                except ClientError as failure:
                    failures.append(str(failure))
        return deleted, failures

    deleted, failures = run(work())
    if as_json:
        print_json({"deleted": deleted, "failures": failures})
    else:
        for name in deleted:
            print(f"deleted {name}")
    if failures:
        raise CommandError("; ".join(failures))
