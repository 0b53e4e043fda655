"""Collects metrics of the transactions coordinated here: their states, the age of the oldest, and their outcomes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ottla.broker.metrics import definitions as declared
from ottla.broker.metrics.page import Page
from ottla.broker.metrics.scrape_target import ScrapeTarget
from ottla.machines.transactions.decisions import POSSIBLE
from ottla.machines.transactions.records import WRITTEN_STATES, TransactionState

BETWEEN_TURNS = 100
"""Transactions counted between yields; counting one takes far less than a slice."""


def transactions(watched: ScrapeTarget, page: Page) -> Iterator[None]:
    """Adds the metrics of transactions. Yields now and then, because there may be many."""
    counts: Counter[TransactionState] = Counter()
    now_ms = watched.broker.clock.now_ms()
    oldest_ms = now_ms
    for number, transaction in enumerate(watched.broker.transactions.known()):
        state = transaction.state
        counts[state] += 1
        if state is TransactionState.ONGOING or state.is_prepared:
            oldest_ms = min(oldest_ms, transaction.started_ms)
        if number % BETWEEN_TURNS == 0:
            yield
    for state in sorted(WRITTEN_STATES):
        page.add(declared.TRANSACTIONS, counts[state], state.label)
    page.add(declared.OLDEST_TRANSACTION_SECONDS, (now_ms - oldest_ms) / 1000)
    decisions = watched.broker.transactions.decisions
    for decision in POSSIBLE:
        outcome = "commit" if decision.is_commit else "abort"
        page.add(declared.TRANSACTIONS_ENDED, decisions[decision], outcome, decision.cause)
