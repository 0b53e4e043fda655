"""Chooses the tests of a mutant: those that mirror its module, then those that reach its function, then properties.

The record of calls (`python -m tests.mutation --map`) says which tests reach a function. Without it, the tests that
import the module count, directly or through other modules of the tests.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache, cached_property
from pathlib import Path

from tests.mutation.call_record import RecordedTest, load
from tests.mutation.mutants import Mutant
from tests.mutation.targets import ROOT

RECORD = ROOT / ".cache" / "mutation" / "calls.json"
RECORDED_TESTS = ("tests/unit", "tests/scenarios", "tests/properties")
IMPORT = re.compile(r"^[ \t]*import ([\w., ]+)", re.MULTILINE)
FROM_IMPORT = re.compile(r"^[ \t]*from ([\w.]+) import (\([^)]*\)|[^\n]*)", re.MULTILINE)
SECONDS_MAX = 30.0
"""Default limit of the time for tests that reach a function: those that take longest are left out."""


class Selection:
    def __init__(self, record: Path = RECORD, seconds_max: float = SECONDS_MAX) -> None:
        self._seconds_max = seconds_max
        self._tests: dict[str, RecordedTest] = {}
        for test, each in load(record).items():
            # Without its parameters: a mutant may change those that are computed when the test is loaded.
            name = test.partition("[")[0]
            if _is_there(name):
                known = self._tests.get(name, RecordedTest(0.0, frozenset()))
                self._tests[name] = RecordedTest(known.seconds + each.seconds, known.calls | each.calls)

    @property
    def is_recorded(self) -> bool:
        return bool(self._tests)

    def tests_for(self, mutant: Mutant) -> list[str]:
        """Returns arguments for pytest, in the order in which to run them."""
        mirrors = mirrors_of(mutant.module)
        if not self._tests:
            return list(dict.fromkeys([*mirrors, *importing(mutant.module)]))
        reaching = self._reaching(mutant)
        return self._ordered(reaching, mirrors) or mirrors

    def seconds_of(self, tests: Iterable[str]) -> float | None:
        """Returns how long tests take together, or None if it was not recorded."""
        tests = list(tests)
        return sum(map(self._seconds, tests)) if all(test in self._tests for test in tests) else None

    def _reaching(self, mutant: Mutant) -> set[str]:
        if mutant.module.endswith(".pyx"):
            callers = extension_users(mutant.module)
            return {test for each in callers for test in self._by_module.get(each, ())}
        found = self._by_function.get(f"{mutant.module}:{mutant.function}", [])
        return set(found) or self._by_module.get(mutant.module, set())

    def _ordered(self, tests: Iterable[str], mirrors: list[str]) -> list[str]:
        def rank(test: str) -> tuple[bool, bool, float, str]:
            file = _file_of(test)
            return file not in mirrors, file.startswith("tests/properties"), self._seconds(test), test

        chosen: list[str] = []
        seconds = 0.0
        for test in sorted(tests, key=rank):
            seconds += self._seconds(test)
            if not chosen or seconds <= self._seconds_max:
                chosen.append(test)
            else:
                seconds -= self._seconds(test)
        return chosen

    def _seconds(self, test: str) -> float:
        return self._tests[test].seconds

    @cached_property
    def _by_function(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for test, each in self._tests.items():
            for call in each.calls:
                found.setdefault(call, []).append(test)
        return found

    @cached_property
    def _by_module(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for call, tests in self._by_function.items():
            if not call.endswith(":<module>"):
                found.setdefault(call.partition(":")[0], set()).update(tests)
        return found


def mirrors_of(module: str) -> list[str]:
    """Returns the test files in the folder that mirrors the module's: those with its name, or all of them if there are
    none."""
    path = Path(module)
    folder = ROOT / "tests" / "unit" / path.parent.relative_to("src/ottla")
    stem = path.stem.strip("_")
    named = [each for each in sorted(folder.glob("test_*.py")) if stem in each.stem]
    found = named or sorted(folder.glob("test_*.py"))
    return [each.relative_to(ROOT).as_posix() for each in found]


def simulations_of(module: str) -> list[str]:
    """Returns the options of the simulations that run a module's code, the empty string for the one without options."""
    kinds = {"groups": "--groups", "transactions": "--transactions", "backlog": "--load"}
    return ["", *(option for name, option in kinds.items() if name in module)]


def extension_users(module: str) -> list[str]:
    """Returns the Python modules that use an extension."""
    dotted = _dotted(module)
    users = [each for each in sorted((ROOT / "src").rglob("*.py")) if dotted in _imports(each)]
    return [each.relative_to(ROOT).as_posix() for each in users]


def importing(module: str) -> list[str]:
    """Returns the test files that import a module, or for an extension one of its users, directly or through other
    modules of the tests; property tests last."""
    wanted = {_dotted(each) for each in (extension_users(module) if module.endswith(".pyx") else [module])}
    reached = {_dotted(path.relative_to(ROOT).as_posix()): _imports(path) for path in (ROOT / "tests").rglob("*.py")}
    users: set[str] = set()
    grown = True
    while grown:
        more = {name for name, imported in reached.items() if imported & (wanted | users)}
        grown = not more <= users
        users |= more
    folders = tuple(f"{name}/" for name in RECORDED_TESTS)
    files = [f"{name.replace('.', '/')}.py" for name in users]
    chosen = [each for each in files if each.startswith(folders) and Path(each).name.startswith("test_")]
    return sorted(chosen, key=lambda each: (each.startswith("tests/properties"), each))


def _dotted(path: str) -> str:
    return Path(path).with_suffix("").as_posix().removeprefix("src/").removesuffix("/__init__").replace("/", ".")


@cache
def _imports(path: Path) -> frozenset[str]:
    """Returns the imported modules; of `from a import b`, both `a` and `a.b`. Parsing all files would take seconds."""
    text = path.read_text(encoding="utf-8")
    found = {name for names in IMPORT.findall(text) for name in re.findall(r"[\w.]+", names)}
    for module, names in FROM_IMPORT.findall(text):
        found.update((module, *(f"{module}.{name}" for name in re.findall(r"\w+", names))))
    return frozenset(found)


def _is_there(test: str) -> bool:
    """Reports whether a recorded test still exists."""
    file, name = test.split("::")[:2]
    return re.search(rf"\b{name}\b", _text_of(ROOT / file)) is not None


@cache
def _text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _file_of(test: str) -> str:
    return test.partition("::")[0]
