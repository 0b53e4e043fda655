"""Rules by which a leader accepts or rejects an append, given the current state of its log. Pure.

A rejection names the log end of the state that caused it. It may be sent to the writer only once that state is
committed (safety: conditional-append). Otherwise a deposed leader could reject an append for a reason that the log
never had.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.protocol.model.writer_ids import NO_EPOCH


class Fenced(NamedTuple):
    """A newer writer epoch has fenced this writer."""

    epoch: int


class UnexpectedEnd(NamedTuple):
    """The log does not end where the writer expects it to end."""

    end_offset: int


class UnknownEpoch(NamedTuple):
    """The log does not know this epoch: it has forgotten it or never had it."""


Refusal = Fenced | UnexpectedEnd | UnknownEpoch


def judge_epoch(epoch: int, current_epoch: int) -> Fenced | UnknownEpoch | None:
    """Checks whether a writer of this epoch may append now; returns None if it may."""
    if epoch == current_epoch:
        return None
    return Fenced(current_epoch) if epoch < current_epoch else UnknownEpoch()


def judge_append(epoch: int, current_epoch: int, end_offset: int, expected_end: int | None) -> Refusal | None:
    """Checks a conditional append; returns None if it may be appended."""
    refused = judge_epoch(epoch, current_epoch)
    if refused is not None:
        return refused
    if expected_end is not None and expected_end != end_offset:
        return UnexpectedEnd(end_offset)
    return None


def judge_fence(current_epoch: int, expected_epoch: int | None) -> Fenced | None:
    """Checks a fence; returns None if it may proceed. A fence may name the epoch that it means to replace, so that a
    delayed fence does not replace a newer writer."""
    if expected_epoch is None or expected_epoch == current_epoch:
        return None
    return Fenced(current_epoch)


__all__ = [
    "NO_EPOCH",
    "Fenced",
    "Refusal",
    "UnexpectedEnd",
    "UnknownEpoch",
    "judge_append",
    "judge_epoch",
    "judge_fence",
]
