"""Broken variants, and the search for a seed that detects one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.simulation.broken.editing import Edit, edited
from tests.simulation.campaign.outcomes import Failed, failure_of
from tests.simulation.cluster_run import ClusterRun
from tests.simulation.groups_run import GroupsRun
from tests.simulation.log_run import LogRun
from tests.simulation.long_run import LongRun
from tests.simulation.transactions_run import TransactionsRun
from tests.simulation.wal_run import WalRun

SEEDS_MAX = 200
Simulation = Callable[[int], None]
"""Runs one seed. Raises the violation that it finds."""


def cluster(seed: int) -> None:
    run = ClusterRun(seed)
    run.execute()
    run.check()


def long(seed: int) -> None:
    run = LongRun(seed)
    run.execute()
    run.check()


def groups(seed: int) -> None:
    run = GroupsRun(seed)
    run.execute()
    run.check()


def transactions(seed: int) -> None:
    run = TransactionsRun(seed)
    run.execute()
    run.check()


def wal(seed: int) -> None:
    WalRun(seed).run()


def logs(seed: int) -> None:
    LogRun(seed).execute()


@dataclass(frozen=True, slots=True)
class Variant:
    name: str
    rule: str
    """The rule that forbids it."""
    breaks: str
    """Describes the defect that the edits introduce."""
    edits: tuple[Edit, ...]
    checkers: frozenset[str]
    """The checkers that may detect it. Anything else, including other exceptions, does not count."""
    simulation: Simulation = cluster
    seeds: tuple[int, ...] = ()
    """Seeds known to detect it. They are tried first to save time."""

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Caught:
    seed: int
    failed: Failed
    tried: int


def catch(variant: Variant, seeds: Iterable[int]) -> Caught | None:
    """Returns the first of the seeds with which one of the variant's checkers reports a violation."""
    with edited(variant.edits), _quiet():
        for tried, seed in enumerate(seeds, 1):
            failed = run(variant.simulation, seed)
            if failed is not None and failed.checker in variant.checkers:
                return Caught(seed, failed, tried)
    return None


def run(simulation: Simulation, seed: int) -> Failed | None:
    try:
        simulation(seed)
    except Exception as error:
        return failure_of(error)
    return None


def known_first(variant: Variant) -> Iterator[int]:
    yield from variant.seeds
    yield from (seed for seed in range(SEEDS_MAX) if seed not in variant.seeds)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences the logs, which are long for brokers under faults and longer for broken ones."""
    before = logging.root.manager.disable
    logging.disable()
    try:
        yield
    finally:
        logging.disable(before)
