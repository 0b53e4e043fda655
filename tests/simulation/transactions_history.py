"""The history of transactions: what producers and readers observed, and what the logs contain at the end.

    aborted read    no read_committed reader sees a record whose commit was not requested, or was rejected
    torn            a transaction is present completely, in all partitions and with its offsets, or not at all
    committed       a transaction acknowledged as committed is present, at the acknowledged offsets
    once            no record is duplicated
    offsets         no offset is read that is not committed, and none older than an earlier committed one
    fencing         no request of a producer succeeds that was sent after its successor got its epoch
    fenced          no producer is fenced without a reason
    one producer    no two producers have the same producer id and epoch

The transaction numbers of a transactional id increase in the order in which they can be committed: a transaction begun
before the next producer has its epoch is aborted or decided by then; one begun after that is fenced.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from tests.simulation.cluster_clients import Place
from tests.simulation.violations import Violation

NEVER = float("inf")


class Outcome(Enum):
    ABORTED = "aborted"
    """Certainly aborted: no commit was requested, or it was rejected."""
    COMMITTED = "committed"
    UNKNOWN = "unknown"
    """A commit was requested, and its outcome is unknown."""


@dataclass(slots=True)
class Transaction:
    transactional_id: str
    number: int
    values: dict[bytes, Place | None] = field(default_factory=dict)
    """The records sent, and where each is if it was acknowledged."""
    has_offset: bool = False
    """Whether its number is committed as an offset in the transaction."""
    outcome: Outcome = Outcome.ABORTED
    settled_s: float = NEVER

    def __str__(self) -> str:
        return f"{self.transactional_id} number {self.number} ({self.outcome.value})"


@dataclass(slots=True)
class Truth:
    """The outcomes according to the logs at the end."""

    committed: dict[Place, bytes] = field(default_factory=dict)
    aborted: dict[Place, bytes] = field(default_factory=dict)
    offsets: dict[tuple[str, int], bool] = field(default_factory=dict)
    """Whether each offset was committed, by transactional id and number."""


class TransactionHistory:
    def __init__(self) -> None:
        self.transactions: dict[tuple[str, int], Transaction] = {}
        self._by_value: dict[bytes, Transaction] = {}
        self._last: dict[str, int] = {}
        self._holders: dict[tuple[int, int], str] = {}
        self.seen: dict[str, dict[Place, bytes]] = {}
        """Records that each reader read."""
        self._ends: dict[tuple[str, str, int], int] = {}

    # -- producers -------------------------------------------------------------------------------------------------

    def begin(self, transactional_id: str) -> Transaction:
        number = self._last[transactional_id] = self._last.get(transactional_id, 0) + 1
        transaction = Transaction(transactional_id, number)
        self.transactions[transactional_id, number] = transaction
        return transaction

    def new_value(self, transaction: Transaction) -> bytes:
        name, number = transaction.transactional_id.encode(), transaction.number
        value = b"%s number %d record %d." % (name, number, len(transaction.values))
        transaction.values[value] = None
        self._by_value[value] = transaction
        return value

    def granted(self, who: str, identity: tuple[int, int]) -> None:
        """`who` identifies one producer, also among those of the same transactional id."""
        holder = self._holders.setdefault(identity, who)
        if holder != who:
            raise Violation("one producer", f"{holder} and {who} both have the producer id and epoch {identity}")

    def count(self, outcome: Outcome) -> int:
        return sum(each.outcome is outcome for each in self.transactions.values())

    # -- readers ---------------------------------------------------------------------------------------------------

    def saw(self, reader: str, place: Place, value: bytes, *, committed_only: bool) -> None:
        topic, partition, offset = place
        at = (reader, topic, partition)
        if offset < self._ends.get(at, 0):
            raise Violation("order of reading", f"{reader} got offset {offset} of {topic}-{partition} too late")
        self._ends[at] = offset + 1
        self.seen.setdefault(reader, {})[place] = value
        transaction = self._by_value.get(value)
        if transaction is None:
            raise Violation("written", f"{reader} got {value!r}, which nobody sent")
        if committed_only and transaction.outcome is Outcome.ABORTED:
            raise Violation("aborted read", f"{reader} got {value!r} at {place} of {transaction}")

    def read_offset(self, transactional_id: str, number: int | None, sent_s: float) -> None:
        """Checks the result of a read sent at this time that found no pending offset."""
        found = None if number is None else self.transactions.get((transactional_id, number))
        if number is not None and (found is None or not found.has_offset or found.outcome is Outcome.ABORTED):
            raise Violation("offsets", f"{transactional_id}: {found or number} was read at {sent_s:.6f} s")
        for other in self.transactions.values():
            is_before = other.outcome is Outcome.COMMITTED and other.settled_s < sent_s and other.has_offset
            if other.transactional_id == transactional_id and is_before and other.number > (number or 0):
                text = f"{transactional_id}: a read at {sent_s:.6f} s found {found or 'nothing'}, not {other}"
                raise Violation("offsets", text)

    # -- the end ---------------------------------------------------------------------------------------------------

    def check(self, truth: Truth) -> None:
        self._check_once(truth)
        places = {value: place for place, value in truth.committed.items()}
        for transaction in self.transactions.values():
            self._check_whole(
                transaction, places, truth.offsets.get((transaction.transactional_id, transaction.number))
            )
        for reader, seen in self.seen.items():
            for place, value in seen.items():
                there = truth.committed.get(place) or truth.aborted.get(place)
                if there != value:
                    raise Violation("seen", f"{reader} saw {value!r} at {place}, where {there!r} is")

    def _check_once(self, truth: Truth) -> None:
        found: dict[bytes, Place] = {}
        for place, value in (*truth.committed.items(), *truth.aborted.items()):
            if value not in self._by_value:
                raise Violation("written", f"{value!r} is at {place}, and nobody sent it")
            if value in found:
                raise Violation("once", f"{value!r} is at {found[value]} and at {place}")
            found[value] = place

    def _check_whole(self, transaction: Transaction, places: dict[bytes, Place], offset: bool | None) -> None:
        here = {value: places[value] for value in transaction.values if value in places}
        is_anything = bool(here) or bool(offset)
        if transaction.outcome is Outcome.ABORTED and is_anything:
            raise Violation("aborted", f"{transaction} is there: {here}, its offset {offset}")
        is_all = here == transaction.values and (bool(offset) or not transaction.has_offset)
        if transaction.outcome is Outcome.COMMITTED and not is_all:
            raise Violation("committed", f"{transaction} is {transaction.values}; there is {here}, its offset {offset}")
        if is_anything and not is_all:
            raise Violation("torn", f"{transaction} is {transaction.values}; there is {here}, its offset {offset}")

    def last_offset(self, transactional_id: str, truth: Truth) -> int | None:
        """The offset committed at the end."""
        numbers = [number for (name, number), is_in in truth.offsets.items() if name == transactional_id and is_in]
        return max(numbers, default=None)

    def unseen(self, truth: Truth, reader: str, *, committed_only: bool) -> dict[Place, bytes]:
        wanted = truth.committed if committed_only else {**truth.committed, **truth.aborted}
        seen = self.seen.get(reader, {})
        return {place: value for place, value in wanted.items() if seen.get(place) != value}
