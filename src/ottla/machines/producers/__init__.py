"""Idempotent producers: decides whether a batch is new, a retry, or must be rejected."""

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
