"""Idempotent producers: which batch is new, which is a retry, which must be refused."""

from ottla.machines.producers.states import (
    Accepted,
    Duplicate,
    OutOfOrder,
    ProducerBatch,
    ProducerEntry,
    ProducerStates,
    StaleEpoch,
    Verdict,
)

__all__ = [
    "Accepted",
    "Duplicate",
    "OutOfOrder",
    "ProducerBatch",
    "ProducerEntry",
    "ProducerStates",
    "StaleEpoch",
    "Verdict",
]
