"""`ottla tune`: shows, applies and undoes the kernel settings that suit a broker."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.failures import CommandError
from ottla.cli.output import AsJson, count_text, print_json, print_table, say
from ottla.cli.tune.record import DEFAULT_RECORD
from ottla.cli.up.commands import default_data_dir

if TYPE_CHECKING:
    from ottla.cli.tune.changes import Outcome
    from ottla.cli.tune.settings import Setting

ROOT = Path("/")


def tune(
    apply: Annotated[bool, typer.Option("--apply", help="Change the settings. Needs root.")] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Restore the values from before `--apply`.")] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Only this group: see the first column. May be repeated.", show_default=False),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="A directory on the disk to tune (default: the data of `ottla up`).")
    ] = None,
    record: Annotated[Path, typer.Option(help="Where the previous values are kept.")] = DEFAULT_RECORD,
    root: Annotated[Path, typer.Option(help="The root of /proc and /sys, such as /host in a container.")] = ROOT,
    as_json: AsJson = False,
) -> None:
    """Tunes the kernel for a broker: disk, interrupts, limits, memory, processors, network.

    Changes nothing by default: it shows each setting, the value for a broker, and the reason. `--apply` changes them
    until the next reboot; `--undo` restores them.
    """
    from ottla.cli.tune.changes import apply_settings, undo_settings

    if apply and undo:
        raise CommandError("--apply and --undo exclude each other")
    if undo:
        if only:
            raise CommandError("--undo restores everything that --apply changed; leave --only away")
        _report(undo_settings(root, record), "restored", as_json)
        return
    settings = _chosen(root, data or default_data_dir(), only)
    if apply:
        _report(apply_settings(root, settings, record), "changed", as_json)
        return
    if as_json:
        print_json([_row_of(each) for each in settings])
        return
    print_table(
        ("group", "setting", "now", "for a broker", "reason"),
        [(s.group, s.path, s.value, "" if s.is_tuned else s.wanted, "" if s.is_tuned else s.reason) for s in settings],
    )
    count = sum(not each.is_tuned for each in settings)
    print(f"{count_text(len(settings), 'setting')}, {count} to change{': ottla tune --apply' if count else ''}")


def _chosen(root: Path, data: Path, only: list[str] | None) -> list[Setting]:
    from ottla.cli.doctor.disk_checks import nearest_existing, queue_directory
    from ottla.cli.tune.plan import GROUPS, plan

    for name in only or ():
        if name not in GROUPS:
            raise CommandError(f"there is no group {name!r}; the groups are {', '.join(GROUPS)}")
    queue = queue_directory(os.stat(nearest_existing(data)).st_dev, root)
    return [each for each in plan(root, queue) if not only or each.group in only]


def _row_of(setting: Setting) -> dict[str, object]:
    return {
        "group": setting.group,
        "setting": setting.path,
        "value": setting.value,
        "wanted": setting.wanted,
        "tuned": setting.is_tuned,
        "reason": setting.reason,
    }


def _outcome_of(outcome: Outcome) -> dict[str, object]:
    return {
        "setting": outcome.path,
        "value": outcome.value,
        "error": outcome.error or None,
        "note": outcome.note or None,
    }


def _report(outcomes: list[Outcome], done: str, as_json: bool) -> None:
    failed = [each for each in outcomes if each.error]
    done_count = sum(not each.error and not each.note for each in outcomes)
    if as_json:
        print_json([_outcome_of(each) for each in outcomes])
    elif outcomes:
        rows = [(each.path, each.value, each.error or each.note) for each in outcomes]
        print_table(("setting", "now", ""), rows)
    if not as_json:
        say(f"{count_text(done_count, 'setting')} {done}")
    if failed:
        hint = "" if os.geteuid() == 0 else "; run it as root"
        raise CommandError(f"{count_text(len(failed), 'setting')} could not be {done}{hint}")
