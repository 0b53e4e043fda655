"""Runs scenarios: commands and their output, in text files that read as a specification.

    # A comment.
    command name=value flag
    ----
    its output

A block ends with an empty line. Each folder has its own commands, from the class of that folder's name in `stages`.
`OTTLA_REWRITE=1` writes the actual output into the files: review the diff before you trust it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.scenarios.stages import STAGES, Command

HERE = Path(__file__).parent
STORIES = sorted(HERE.glob("*/*.txt"))
RULE = "----"


def parse_command(line: str) -> Command:
    name, *words = line.split()
    return Command(name, {word.partition("=")[0]: word.partition("=")[2] for word in words})


def play(story: Path) -> str:
    """Returns the scenario's text with the actual output in place of the expected one."""
    stage = STAGES[story.parent.name]()
    shown: list[str] = []
    for block in story.read_text(encoding="utf-8").strip().split("\n\n"):
        lines = block.splitlines()
        told = lines[: lines.index(RULE)] if RULE in lines else lines
        shown += told
        commands = [line for line in told if line and not line.startswith("#")]
        if commands:
            shown.append(RULE)
        for line in commands:
            shown += [text for text in stage.perform(parse_command(line)).splitlines() if text]
        shown.append("")
    return "\n".join(shown).rstrip("\n") + "\n"


@pytest.mark.parametrize("story", STORIES, ids=lambda story: f"{story.parent.name}/{story.stem}")
def test_story(story: Path) -> None:
    shown = play(story)
    if os.environ.get("OTTLA_REWRITE"):
        story.write_text(shown, encoding="utf-8")
    assert shown == story.read_text(encoding="utf-8")


def test_every_folder_has_a_stage_and_stories() -> None:
    folders = {path.parent.name for path in STORIES}
    assert folders == set(STAGES)
