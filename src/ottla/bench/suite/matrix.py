"""A matrix: what to measure, on which targets, and how often. Pure; `matrix_file` reads one from TOML."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ottla.bench.suite.combinations import Chosen, full_product, pairwise
from ottla.bench.suite.goals import RatioGoal
from ottla.bench.suite.settings import DEFAULTS, Configuration, Value, conflict_in

Combine = Literal["product", "pairwise", "list"]
TargetKind = Literal["ottla", "kafka", "bootstrap"]


@dataclass(frozen=True, slots=True)
class TargetPlan:
    """Brokers to measure."""

    name: str
    kind: TargetKind
    brokers: int = 1
    bootstrap: str = ""
    """The addresses of brokers that run already."""
    flavour: str = ""
    """The kind of those brokers, ottla or kafka, which determines the names of topic settings."""
    heap_mb: int = 512
    config: Mapping[str, str] = field(default_factory=dict)
    """Settings of the brokers, under Kafka's names."""

    @property
    def speaks(self) -> str:
        """Whose settings the target understands: `ottla` or `kafka`."""
        return self.flavour or ("kafka" if self.kind == "bootstrap" else self.kind)


@dataclass(frozen=True, slots=True)
class Entry:
    """One item of an explicit list. Settings with several values stand for all their combinations."""

    label: str
    factors: Mapping[str, Sequence[Value]]
    goals: tuple[RatioGoal, ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """One configuration, to be measured on every target."""

    label: str
    configuration: Configuration
    goals: tuple[RatioGoal, ...] = ()

    @property
    def key(self) -> str:
        """Identifies the configuration in results, whatever its label."""
        return key_of(self.configuration)


@dataclass(frozen=True, slots=True)
class Matrix:
    """The content of a matrix file."""

    name: str
    targets: tuple[TargetPlan, ...]
    about: str = ""
    combine: Combine = "product"
    repetitions: int = 3
    warm_up_s: float = 1.0
    target_warm_up_s: float = 0.0
    """Load on a target that has just started, before anything is measured, so that a JVM can compile its code."""
    alone: bool = False
    """Runs only the target being measured."""
    subject: str = ""
    peer: str = ""
    """Ratios are those of the subject to the peer."""
    fixed: Mapping[str, Value] = field(default_factory=dict)
    factors: Mapping[str, Sequence[Value]] = field(default_factory=dict)
    entries: tuple[Entry, ...] = ()
    excluded: tuple[Mapping[str, Value], ...] = ()
    goals: tuple[RatioGoal, ...] = ()
    """The goals of every row that has none of its own."""
    start_goals: tuple[RatioGoal, ...] = ()


def rows_of(matrix: Matrix) -> list[Row]:
    """Returns each configuration once, in file order."""
    if matrix.combine == "list":
        found = [row for entry in matrix.entries for row in _rows_of_entry(matrix, entry)]
    else:
        found = [Row(label_of(chosen), whole(matrix, chosen), matrix.goals) for chosen in _chosen(matrix)]
    return list({row.key: row for row in reversed(found)}.values())[::-1]


def _chosen(matrix: Matrix) -> list[Chosen]:
    def allowed(chosen: Mapping[str, Value]) -> bool:
        return is_allowed(matrix, chosen, is_whole=len(chosen) == len(matrix.factors))

    if matrix.combine == "pairwise":
        return pairwise(matrix.factors, allowed).rows
    return full_product(matrix.factors, allowed)


def _rows_of_entry(matrix: Matrix, entry: Entry) -> list[Row]:
    found = []
    for chosen in full_product(entry.factors, lambda some: is_allowed(matrix, some, is_whole=True)):
        varied = {name: value for name, value in chosen.items() if len(entry.factors[name]) > 1}
        parts = [entry.label or label_of(chosen), label_of(varied) if varied and entry.label else ""]
        found.append(Row(", ".join(filter(None, parts)), whole(matrix, chosen), entry.goals or matrix.goals))
    return found


def is_allowed(matrix: Matrix, chosen: Mapping[str, Value], *, is_whole: bool) -> bool:
    """Returns whether values are compatible. In a partial row, only chosen and fixed values can conflict."""
    open_factors = () if is_whole else [name for name in matrix.factors if name not in chosen]
    known = {name: value for name, value in whole(matrix, chosen).items() if name not in open_factors}
    if conflict_in(known) is not None:
        return False
    return not any(all(known.get(name) == value for name, value in each.items()) for each in matrix.excluded)


def whole(matrix: Matrix, chosen: Mapping[str, Value]) -> dict[str, Value]:
    """Adds the values of all settings that were not chosen."""
    return {**DEFAULTS, **matrix.fixed, **chosen}


def label_of(chosen: Mapping[str, Value]) -> str:
    """Returns a short label for people, with names that lack their group."""
    parts = []
    for name, value in chosen.items():
        short = name.rpartition(".")[2].replace("_", " ")
        parts.append(str(value) if short in ("mode", "driver", "storage") else f"{short}={_text(value)}")
    return ", ".join(parts) or "defaults"


def _text(value: Value) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else f"{value}"


def key_of(configuration: Mapping[str, Any]) -> str:
    """Returns a key that identifies a configuration across runs. Writing out a default does not change it."""
    differing = {name: value for name, value in configuration.items() if DEFAULTS.get(name) != value}
    return hashlib.sha256(json.dumps(differing, sort_keys=True).encode()).hexdigest()[:12]
