"""Reads a matrix from TOML. An error message names the line and the nearest existing name."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn, get_args

from ottla.bench.suite.goals import RatioGoal, parse_goal
from ottla.bench.suite.matrix import Combine, Entry, Matrix, TargetKind, TargetPlan, rows_of, whole
from ottla.bench.suite.settings import SETTINGS, Value, conflict_in
from ottla.bench.suite.toml_lines import Path as KeyPath
from ottla.bench.suite.toml_lines import line_of, lines_of_keys

GROUPS = ("producer", "topic", "consumers")
RUN_KEYS = {"name": str, "about": str, "combine": str, "repetitions": int, "warm_up_s": float,
            "target_warm_up_s": float, "alone": bool, "subject": str, "peer": str}  # fmt: skip
OTHER_KEYS = ("targets", "list", "exclude", "goals", "start_goals", *GROUPS)
TARGET_KEYS = {"kind": str, "brokers": int, "bootstrap": str, "flavour": str, "heap_mb": int, "config": dict}
TYPE_WORDS = {str: "a string in quotes", int: "an integer", float: "a number", bool: "true or false", dict: "a table"}
TARGET_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]*")


class MatrixError(Exception):
    """The file does not describe a matrix. The message names the file, the line and the mistake."""


def read_matrix(path: Path) -> Matrix:
    """Reads a matrix file. Raises MatrixError if it cannot be read or has a mistake."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as cause:
        reason = cause.strerror if isinstance(cause, OSError) else "it is not text in UTF-8"
        raise MatrixError(f"the matrix {path} cannot be read: {reason}") from cause
    return parse_matrix(text, path)


def parse_matrix(text: str, path: Path) -> Matrix:
    """Parses a matrix. `path` is for messages, and for the files that the matrix names relative to it."""
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as cause:
        raise MatrixError(f"{path} is not valid TOML: {cause}") from cause
    return _Reader(text, path).matrix(tree)


class _Reader:
    def __init__(self, text: str, path: Path) -> None:
        self._path = path
        self._lines = lines_of_keys(text)

    def matrix(self, tree: Mapping[str, Any]) -> Matrix:
        run = self._run_keys(tree)
        combine = run.get("combine", "list" if "list" in tree else "product")
        if combine not in get_args(Combine):
            self._fail(("combine",), f"combine must be one of {', '.join(get_args(Combine))}")
        if (combine == "list") != ("list" in tree):
            self._fail(
                ("list",) if "list" in tree else ("combine",),
                'combine = "list" needs [[list]], and [[list]] needs combine = "list"',
            )
        factors = self._factors({name: tree[name] for name in (*GROUPS, "driver", "storage") if name in tree}, ())
        fixed = {name: values[0] for name, values in factors.items() if len(values) == 1}
        found = Matrix(
            **{"name": self._path.stem, **run, "combine": combine},
            targets=self._targets(tree),
            fixed=fixed,
            factors={name: values for name, values in factors.items() if len(values) > 1},
            entries=tuple(self._entry(entry, at) for at, entry in enumerate(tree.get("list", []))),
            excluded=tuple(self._exclusion(entry, at) for at, entry in enumerate(tree.get("exclude", []))),
            goals=self._goals(tree.get("goals", []), ("goals",)),
            start_goals=self._goals(tree.get("start_goals", []), ("start_goals",)),
        )
        self._check(found)
        return found

    def _run_keys(self, tree: Mapping[str, Any]) -> dict[str, Any]:
        known = (*RUN_KEYS, *OTHER_KEYS, "driver", "storage")
        found = {}
        for key, value in tree.items():
            if key not in known:
                self._unknown((key,), key, known)
            if key in RUN_KEYS:
                found[key] = self._typed((key,), value, RUN_KEYS[key])
        if found.get("repetitions", 1) < 1:
            self._fail(("repetitions",), "repetitions must be at least 1")
        return found

    def _targets(self, tree: Mapping[str, Any]) -> tuple[TargetPlan, ...]:
        targets = tree.get("targets")
        if not isinstance(targets, dict) or not targets:
            self._fail(("targets",), 'a matrix needs a target, such as [targets.ottla] with kind = "ottla"')
        return tuple(self._target(name, table) for name, table in targets.items())

    def _target(self, name: str, table: Any) -> TargetPlan:
        where = ("targets", name)
        if not isinstance(table, dict):
            self._fail(where, f"target {name} must be a table: [targets.{name}]")
        if not TARGET_NAME.fullmatch(name):
            self._fail(where, f"the name of target {name} may contain only letters, digits and hyphens")
        found = {}
        for key, value in table.items():
            if key not in TARGET_KEYS:
                self._unknown((*where, key), key, TARGET_KEYS)
            found[key] = self._typed((*where, key), value, TARGET_KEYS[key])
        kinds = get_args(TargetKind)
        if found.get("kind") not in kinds:
            self._fail((*where, "kind"), f"the kind of target {name} must be one of {', '.join(kinds)}")
        if (found["kind"] == "bootstrap") != bool(found.get("bootstrap")):
            self._fail(
                where, f'target {name}: kind = "bootstrap" needs bootstrap = "host:port,...", and the other way round'
            )
        if found.get("flavour", "kafka") not in ("ottla", "kafka"):
            self._fail((*where, "flavour"), "flavour must be ottla or kafka")
        if found.get("brokers", 1) not in (1, 3):
            self._fail((*where, "brokers"), "brokers must be 1 or 3")
        config = {key: _property(value) for key, value in found.pop("config", {}).items()}
        return TargetPlan(name=name, **found, config=config)

    def _factors(self, tree: Mapping[str, Any], where: KeyPath) -> dict[str, Sequence[Value]]:
        """Returns the settings of a table, each with one or several values."""
        found: dict[str, Sequence[Value]] = {}
        for name, value in _flat(tree):
            path = (*where, *name.split("."))
            if name not in SETTINGS:
                self._unknown(path, name, SETTINGS)
            values = value if isinstance(value, list) else [value]
            if not values:
                self._fail(path, f"{name} has no value")
            for each in values:
                if (problem := SETTINGS[name].problem_with(each)) is not None:
                    self._fail(path, f"{name} {problem}, not {each!r}")
                if SETTINGS[name].kind == "path" and each and not (self._path.parent / each).is_file():
                    self._fail(path, f"{name}: the file {each} does not exist in the directory of the matrix")
            found[name] = [self._beside(each) if SETTINGS[name].kind == "path" else each for each in values]
        return found

    def _beside(self, name: str) -> str:
        return str(self._path.parent / name) if name else name

    def _entry(self, entry: Any, at: int) -> Entry:
        where: KeyPath = ("list", at)
        if not isinstance(entry, dict):
            self._fail(where, "[[list]] must contain tables")
        label = self._typed((*where, "label"), entry.get("label", ""), str)
        goals = self._goals(entry.get("goals", []), (*where, "goals"))
        settings = {name: value for name, value in entry.items() if name not in ("label", "goals")}
        return Entry(label, self._factors(settings, where), goals)

    def _exclusion(self, entry: Any, at: int) -> dict[str, Value]:
        where: KeyPath = ("exclude", at)
        if not isinstance(entry, dict):
            self._fail(where, "[[exclude]] must contain tables")
        factors = self._factors(entry, where)
        for name, values in factors.items():
            if len(values) != 1:
                self._fail((*where, *name.split(".")), f"[[exclude]] must have a single value for {name}")
        return {name: values[0] for name, values in factors.items()}

    def _goals(self, texts: Any, where: KeyPath) -> tuple[RatioGoal, ...]:
        if not isinstance(texts, list):
            self._fail(where, 'goals must be a list like ["records_per_s >= 1.5"]')
        found = []
        for text in texts:
            goal = parse_goal(str(text))
            if isinstance(goal, str):
                self._fail(where, goal)
            found.append(goal)
        return tuple(found)

    def _check(self, matrix: Matrix) -> None:
        names = [target.name for target in matrix.targets]
        for key in ("subject", "peer"):
            if (name := getattr(matrix, key)) and name not in names:
                self._unknown((key,), name, names, what="target")
        self._check_rates(matrix)
        if (conflict := conflict_in({**matrix.fixed})) is not None:
            self._fail(("producer",), conflict)
        for at, entry in enumerate(matrix.entries):
            first = whole(matrix, {name: values[0] for name, values in entry.factors.items()})
            conflict = conflict_in(first)
            if conflict is not None and all(len(values) == 1 for values in entry.factors.values()):
                self._fail(("list", at), conflict)
        if not rows_of(matrix):
            reason = conflict_in(whole(matrix, {})) or "all combinations are excluded"
            self._fail(("producer",), f"no combination is left to measure: {reason}")

    def _check_rates(self, matrix: Matrix) -> None:
        """Checks that the rows and targets whose rates are used exist."""
        rows = rows_of(matrix)
        labels = [row.label for row in rows if not row.configuration["producer.rate_of"]]
        names = ["", *(target.name for target in matrix.targets)]
        for row in rows:
            label, target = str(row.configuration["producer.rate_of"]), str(row.configuration["producer.rate_target"])
            entries = [
                at for at, each in enumerate(matrix.entries) if label in each.factors.get("producer.rate_of", ())
            ]
            where: KeyPath = (*(("list", entries[0]) if entries else ()), "producer", "rate_of")
            if label and label not in labels:
                self._unknown(where, label, labels, what="row")
            if target not in names:
                self._unknown(where, target, names[1:], what="target")

    def _typed(self, where: KeyPath, value: Any, wanted: type) -> Any:
        accepted = (int, float) if wanted is float else wanted
        if not isinstance(value, accepted) or (isinstance(value, bool) and wanted is not bool):
            self._fail(where, f"{where[-1]} must be {TYPE_WORDS[wanted]}, not {value!r}")
        return value

    def _unknown(self, where: KeyPath, name: str, known: Any, *, what: str = "key") -> NoReturn:
        nearest = get_close_matches(name, list(known), n=1, cutoff=0.5)
        hint = f" Did you mean {nearest[0]}?" if nearest else f" There are {', '.join(known)}."
        self._fail(where, f"there is no {what} {name}.{hint}")

    def _fail(self, where: KeyPath, sentence: str) -> NoReturn:
        line = line_of(self._lines, where)
        at = "" if line is None else f", line {line}"
        raise MatrixError(f"{self._path}{at}: {sentence}")


def _property(value: Any) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def _flat(tree: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in tree.items():
        found += _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else [(f"{prefix}{name}", value)]
    return found
