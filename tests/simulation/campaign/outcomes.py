"""Runs one seed of the cluster simulation and returns its outcome in a form that can be sent to another process."""

from __future__ import annotations

import traceback
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from time import perf_counter

from ottla.sim.world import VirtualTimeoutError
from tests.simulation.cluster_run import ClusterRun, Violation
from tests.simulation.groups_run import GroupsRun
from tests.simulation.load_run import LoadRun
from tests.simulation.transactions_run import TransactionsRun

LIVENESS = "liveness"
ERROR = "error"
"""Stands in place of a checker's name for an unexpected exception."""
HUNG = "hung"
DIED = "died"


class Kind(Enum):
    """The kind of simulation: the clients in the cluster and the acknowledgements they get."""

    CLUSTER = "records"
    GROUPS = "commits"
    TRANSACTIONS = "transactions"
    LOAD = "requests"

    @property
    def flag(self) -> str:
        """The option of the command line."""
        return "" if self is Kind.CLUSTER else f"--{self.name.lower()}"

    def new_run(self, seed: int) -> ClusterRun | LoadRun:
        match self:
            case Kind.GROUPS:
                return GroupsRun(seed)
            case Kind.TRANSACTIONS:
                return TransactionsRun(seed)
            case Kind.LOAD:
                return LoadRun(seed)
            case _:
                return ClusterRun(seed)


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
    virtual_s: float = 0.0
    real_s: float = 0.0
    acknowledged: int = 0
    leader_changes: int = 0
    faults: Counter[str] = field(default_factory=Counter)


def run_seed(seed: int, kind: Kind = Kind.CLUSTER) -> Outcome:
    """Runs a seed. Never raises an exception of the run."""
    run = kind.new_run(seed)
    outcome = Outcome(run.seed)
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
