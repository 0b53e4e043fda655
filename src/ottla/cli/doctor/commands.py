"""`ottla doctor`: checks whether this machine suits a broker, and says what to change and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.failures import CommandError
from ottla.cli.output import AsJson, count_text, print_json, print_rich
from ottla.cli.up.commands import default_data_dir

if TYPE_CHECKING:
    from ottla.cli.doctor.checks import Check

_STYLES = {"ok": "green", "warn": "yellow", "bad": "bold red"}


def doctor(
    data: Annotated[
        Path | None, typer.Option(help="The data directory to check (default: that of `ottla up`).")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="A configuration file to check, such as Kafka's server.properties.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Checks disk, kernel, limits and software. Writes a file of 1 MB for about a second, and removes it.

    With `--config`, also reports the settings of the file that Ottla rejects, and those that have no effect.

    Fails if a check is bad; warnings are advice.
    """
    from ottla.cli.doctor.checks import Status
    from ottla.cli.doctor.disk_checks import disk_checks
    from ottla.cli.doctor.kernel_checks import kernel_checks
    from ottla.cli.doctor.settings_checks import settings_checks
    from ottla.cli.doctor.software_checks import software_checks
    from ottla.cli.doctor.tuning_checks import tuning_checks

    groups = {
        **({} if config is None else {"settings": list(settings_checks(config))}),
        "disk": list(disk_checks(data or default_data_dir())),
        "kernel": [*kernel_checks(), *tuning_checks(data or default_data_dir())],
        "software": list(software_checks()),
    }
    counts = {status: sum(each.status is status for rows in groups.values() for each in rows) for status in Status}
    if as_json:
        rows = [{"group": group, **asdict(each)} for group, checks in groups.items() for each in checks]
        print_json({"ok": not counts[Status.bad], "checks": rows})
    else:
        _print(groups.items())
        print(f"{counts[Status.ok]} ok, {count_text(counts[Status.warn], 'warning')}, {counts[Status.bad]} bad")
    if counts[Status.bad]:
        raise CommandError("this system has problems; see the rows marked bad")


def _print(groups: Iterable[tuple[str, list[Check]]]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for heading in ("", "what", "value", "advice"):
        table.add_column(heading, overflow="fold")
    for group, checks in groups:
        table.add_row("", Text(group, style="bold"))
        for each in checks:
            table.add_row(Text(each.status, style=_STYLES[each.status]), each.name, each.value, each.advice)
    print_rich(table)
