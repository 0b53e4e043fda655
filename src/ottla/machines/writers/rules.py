"""What a leader decides about an append, by what its log says at this moment. Pure.

A refusal names the end of what caused it: it may be told to the writer when that is committed, and not before (SAFETY
27). A leader that is not one any more would otherwise refuse for a reason that the log never had.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.model.writer_ids import NO_EPOCH


class Fenced(NamedTuple):
    epoch: int


class UnexpectedEnd(NamedTuple):
    end_offset: int


class Unknown(NamedTuple):
    """The log does not know this epoch: it forgot it, or never had it."""


Refusal = Fenced | UnexpectedEnd | Unknown


def judge_epoch(epoch: int, current_epoch: int) -> Fenced | Unknown | None:
    """Whether a writer of this epoch may write now."""
    if epoch == current_epoch:
        return None
    return Fenced(current_epoch) if epoch < current_epoch else Unknown()


def judge_append(epoch: int, current_epoch: int, end_offset: int, expected_end: int | None) -> Refusal | None:
    refused = judge_epoch(epoch, current_epoch)
    if refused is not None:
        return refused
    if expected_end is not None and expected_end != end_offset:
        return UnexpectedEnd(end_offset)
    return None


def judge_fence(current_epoch: int, expected_epoch: int | None) -> Fenced | None:
    """A fence may say whom it means to replace, so that one that was late does not replace another."""
    if expected_epoch is None or expected_epoch == current_epoch:
        return None
    return Fenced(current_epoch)


__all__ = ["NO_EPOCH", "Fenced", "Refusal", "UnexpectedEnd", "Unknown", "judge_append", "judge_epoch", "judge_fence"]
