"""Idempotent producers: which batch is new, which is a retry, which must be refused."""

from ottla.machines.producers.states import (
    BATCHES_KEPT,
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
    "BATCHES_KEPT",
    "Accepted",
    "Duplicate",
    "OutOfOrder",
    "ProducerBatch",
    "ProducerEntry",
    "ProducerStates",
    "StaleEpoch",
    "Verdict",
]
