"""Idempotent producers: which batch is new, which is a retry, which must be refused."""

from ottla.machines.producers.states import (
    BATCHES_KEPT,
    NO_SEQUENCE,
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
    "NO_SEQUENCE",
    "Accepted",
    "Duplicate",
    "OutOfOrder",
    "ProducerBatch",
    "ProducerEntry",
    "ProducerStates",
    "StaleEpoch",
    "Verdict",
]
