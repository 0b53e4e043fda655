"""The record of calls: which functions of the package each test reaches, and how long the test takes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RecordedTest:
    seconds: float
    calls: frozenset[str]
    """Names of functions, as `path:qualified name`."""


def load(path: Path) -> dict[str, RecordedTest]:
    """Returns the recorded tests by their ids; none if there is no record."""
    if not path.exists():
        return {}
    record = json.loads(path.read_text(encoding="utf-8"))
    functions = record["functions"]
    return {
        test: RecordedTest(seconds, frozenset(functions[place] for place in calls))
        for test, (seconds, calls) in record["tests"].items()
    }


def save(path: Path, tests: Mapping[str, RecordedTest]) -> None:
    """Writes a record. Functions are listed once, because most tests reach the same ones."""
    functions = sorted({call for test in tests.values() for call in test.calls})
    places = {name: place for place, name in enumerate(functions)}
    rows = {test: (each.seconds, sorted(places[call] for call in each.calls)) for test, each in tests.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"functions": functions, "tests": rows}), encoding="utf-8")
