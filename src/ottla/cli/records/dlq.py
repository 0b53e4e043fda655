"""`ottla dlq`: lists records that a connector could not process, and sends them back."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.connect.connector_runs import failures_in_words
from ottla.cli.output import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, count_text, print_json, print_table, run, say

if TYPE_CHECKING:
    from ottla.client.consumer.types import ConsumerRecord
    from ottla.connect.dead_letters import Origin

commands = typer.Typer(
    help="Lists records that connectors could not process, and sends them back.", no_args_is_help=True
)

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The dead-letter topic.", show_default=False)]
_VALUE_SHOWN = 60


@commands.command("list")
def list_letters(
    topic: Topic,
    everything: Annotated[bool, typer.Option("--all", help="Include records that were sent back.")] = False,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Lists dead letters with their origin and the reason."""
    with failures_in_words():
        found = run(_listed(bootstrap, topic, everything))
    if as_json:
        print_json([_as_json(*each) for each in found])
        return
    rows = [
        (
            f"{record.partition}:{record.offset}",
            f"{origin.at} {origin.offset}",
            origin.connector,
            origin.reason,
            _shown(record),
        )
        for record, origin in found
    ]
    print_table(["here", "from", "connector", "reason", "value"], rows)
    say(count_text(len(found), "dead letter"))


@commands.command("redrive")
def redrive(
    topic: Topic,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Send back at most this many records.")] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Sends dead letters back to the topics they came from, each once."""
    with failures_in_words():
        from ottla.connect.redrive import redrive as send_back

        sent = run(send_back(bootstrap, topic, limit=limit))
    print(f"{count_text(sent, 'record')} sent back")


async def _listed(bootstrap: str, topic: str, everything: bool) -> list[tuple[ConsumerRecord, Origin]]:
    from ottla.connect.redrive import list_dead_letters

    return [each async for each in list_dead_letters(bootstrap, topic, include_redriven=everything)]


def _as_json(record: ConsumerRecord, origin: Origin) -> dict[str, Any]:
    return {
        "partition": record.partition,
        "offset": record.offset,
        "origin": {"topic": origin.at.topic, "partition": origin.at.partition, "offset": origin.offset},
        "connector": origin.connector,
        "reason": origin.reason,
        "key": None if record.key is None else record.key.decode(errors="backslashreplace"),
        "value": None if record.value is None else record.value.decode(errors="backslashreplace"),
    }


def _shown(record: ConsumerRecord) -> str:
    text = "" if record.value is None else record.value.decode(errors="backslashreplace")
    is_cut = len(text) > _VALUE_SHOWN and sys.stdout.isatty()  # a program that reads the output gets the whole value
    return text[: _VALUE_SHOWN - 3] + "..." if is_cut else text
