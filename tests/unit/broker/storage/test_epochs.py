"""Leader epochs of one log, for OffsetForLeaderEpoch."""

from __future__ import annotations

import pytest

from ottla.broker.storage.epochs import LeaderEpochs


def epochs() -> LeaderEpochs:
    return LeaderEpochs([(1, 0), (2, 10), (5, 30)])


def test_only_the_first_batch_of_an_epoch_counts() -> None:
    known = LeaderEpochs()
    for epoch, offset in [(1, 0), (1, 5), (3, 9), (3, 12), (2, 20)]:
        known.note(epoch, offset)
    assert list(known) == [(1, 0), (3, 9)]
    assert known.latest == 3


def test_the_epoch_of_an_offset() -> None:
    known = LeaderEpochs([(1, 5), (2, 10)])
    assert [known.epoch_at(offset) for offset in (0, 4, 5, 9, 10, 99)] == [-1, -1, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (1, (1, 10)),
        (2, (2, 30)),
        (3, (2, 30)),  # epoch 3 has no records: the largest below it, and its end
        (4, (2, 30)),
        (5, (5, 42)),  # the current one ends at the log's end
        (6, (-1, -1)),  # not yet started
        (0, (0, 0)),  # before the log's first epoch: ends where that begins
        (-1, (-1, -1)),
    ],
)
def test_where_an_epoch_ends(asked: int, answer: tuple[int, int]) -> None:
    assert epochs().end_of(asked, 42) == answer


def test_an_empty_log_knows_no_epoch() -> None:
    assert LeaderEpochs().end_of(0, 0) == (-1, -1)
    assert LeaderEpochs().latest == -1


def test_truncation_forgets_epochs_that_begin_at_or_above() -> None:
    known = epochs()
    known.truncate_from(30)
    assert list(known) == [(1, 0), (2, 10)]
    known.truncate_from(0)
    assert list(known) == []


@pytest.mark.parametrize(
    ("start", "left"),
    [
        (0, [(1, 0), (2, 10), (5, 30)]),
        (4, [(1, 4), (2, 10), (5, 30)]),
        (10, [(2, 10), (5, 30)]),
        (29, [(2, 29), (5, 30)]),
        (99, [(5, 99)]),
    ],
)
def test_a_new_start_keeps_the_epoch_that_reaches_over_it(start: int, left: list[tuple[int, int]]) -> None:
    known = epochs()
    known.truncate_before(start)
    assert list(known) == left
