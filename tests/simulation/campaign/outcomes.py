"""Runs one seed of a simulation and returns its outcome in a form that can be sent to another process."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from time import perf_counter
from typing import NamedTuple, Protocol

from ottla import reach
from ottla.sim.world import VirtualTimeoutError
from tests.simulation.cluster_run import ClusterRun, Violation
from tests.simulation.groups_run import GroupsRun
from tests.simulation.harsh_log_run import HarshLogRun
from tests.simulation.load_run import LoadRun
from tests.simulation.log_run import LogRun
from tests.simulation.long_run import LongRun
from tests.simulation.state_faults import SEEDS_FROM
from tests.simulation.transactions_run import TransactionsRun
from tests.simulation.wal_run import WalRun

LIVENESS = "liveness"
ERROR = "error"
"""Stands in place of a checker's name for an unexpected exception."""
HUNG = "hung"
DIED = "died"


class World(Protocol):
    """The simulated time of a run."""

    @property
    def now_s(self) -> float: ...


class Run(Protocol):
    """One seed of a simulation."""

    seed: int
    fault_counts: Counter[str]

    @property
    def plan(self) -> object: ...

    @property
    def world(self) -> World: ...

    @property
    def acknowledged(self) -> int: ...

    @property
    def leader_changes(self) -> int: ...

    def execute(self) -> None: ...

    def check(self) -> None: ...


class Kind(Enum):
    """A simulation, by its name on the command line."""

    CLUSTER = "clusters"
    LONG = "long"
    GROUPS = "groups"
    TRANSACTIONS = "transactions"
    WAL = "wal"
    LOG = "log"
    LOAD = "load"

    @property
    def flag(self) -> str:
        """The option of the command line."""
        return "" if self is Kind.CLUSTER else f"--kind {self.value}"

    @property
    def noun(self) -> str:
        """The plural noun for what brokers acknowledge in this kind, for progress output."""
        return _NOUNS.get(self, "records")

    @property
    def has_later_seeds(self) -> bool:
        """Whether its seeds from `state_faults.SEEDS_FROM` on have faults and topics that earlier ones lack."""
        return self is not Kind.LOAD

    def new_run(self, seed: int) -> Run:
        return _RUNS[self](seed)


def _log_run(seed: int) -> LogRun:
    return LogRun(seed) if seed < SEEDS_FROM else HarshLogRun(seed)


_NOUNS = {
    Kind.GROUPS: "commits",
    Kind.TRANSACTIONS: "transactions",
    Kind.WAL: "appends",
    Kind.LOG: "offsets",
    Kind.LOAD: "requests",
}
_RUNS: Mapping[Kind, Callable[[int], Run]] = {
    Kind.CLUSTER: ClusterRun,
    Kind.LONG: LongRun,
    Kind.GROUPS: GroupsRun,
    Kind.TRANSACTIONS: TransactionsRun,
    Kind.WAL: WalRun,
    Kind.LOG: _log_run,
    Kind.LOAD: LoadRun,
}


class Job(NamedTuple):
    """A seed of a kind, to be run."""

    seed: int
    kind: Kind = Kind.CLUSTER


@dataclass(frozen=True, slots=True)
class Failed:
    checker: str
    text: str
    details: str = ""
    """The traceback, for debugging."""


@dataclass(slots=True)
class Outcome:
    seed: int
    failed: Failed | None = None
    kind: Kind = Kind.CLUSTER
    virtual_s: float = 0.0
    real_s: float = 0.0
    acknowledged: int = 0
    leader_changes: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    reached: Counter[str] = field(default_factory=Counter)
    """How often each branch was taken (`ottla.reach`)."""


def run_seed(job: Job) -> Outcome:
    """Runs a seed. Never raises an exception of the run."""
    reach.reset()
    run = job.kind.new_run(job.seed)
    outcome = Outcome(run.seed, kind=job.kind)
    begin_s = perf_counter()
    try:
        run.execute()
        run.check()
    except Exception as error:
        outcome.failed = failure_of(error)
    outcome.real_s = perf_counter() - begin_s
    outcome.virtual_s = run.world.now_s
    outcome.acknowledged = run.acknowledged
    outcome.leader_changes = run.leader_changes
    outcome.faults.update(run.fault_counts)
    outcome.reached.update(reach.counts())
    return outcome


def failure_of(error: BaseException) -> Failed:
    """Returns a checker's violation if there is one among the causes, otherwise an error."""
    details = "".join(traceback.format_exception(error))
    for cause in _causes(error):
        if isinstance(cause, Violation):
            return Failed(cause.checker, str(cause), details)
        if isinstance(cause, VirtualTimeoutError):
            return Failed(LIVENESS, str(cause).partition(" pending:")[0], details)
    return Failed(ERROR, f"{type(error).__name__}: {error}".partition("\n")[0], details)


def _causes(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found
