"""The lag of a group, in records and in seconds."""

from __future__ import annotations

import pytest

from ottla.protocol.model.lag import Lag, batch_timestamp_ms, lag_of, lag_seconds


@pytest.mark.parametrize(
    ("committed", "log_start", "last_stable", "expected"),
    [
        pytest.param(4, 0, 10, Lag(6, 0, 4), id="behind"),
        pytest.param(10, 0, 10, Lag(0, 0, None), id="everything is read"),
        pytest.param(12, 0, 10, Lag(0, 0, None), id="ahead of the last stable offset"),
        pytest.param(2, 5, 10, Lag(5, 3, 5), id="some of it was deleted unread"),
        pytest.param(2, 10, 10, Lag(0, 8, None), id="all of it was deleted unread"),
        pytest.param(0, 0, 0, Lag(0, 0, None), id="an empty log"),
    ],
)
def test_lag_in_records(committed: int, log_start: int, last_stable: int, expected: Lag) -> None:
    assert lag_of(committed, log_start, last_stable) == expected


def test_lag_in_seconds() -> None:
    assert lag_seconds(3, 1_000, 4_500) == 3.5
    assert lag_seconds(0, None, 4_500) == 0.0, "nothing is unread"
    assert lag_seconds(3, None, 4_500) is None, "the record has no time"
    assert lag_seconds(3, 9_000, 4_500) == 0.0, "the producer's clock is ahead"


def test_the_time_of_a_batch() -> None:
    assert batch_timestamp_ms(1_000, 2_000, is_log_append_time=False) == 1_000
    assert batch_timestamp_ms(1_000, 2_000, is_log_append_time=True) == 2_000, "the broker's time is of all records"
    assert batch_timestamp_ms(-1, -1, is_log_append_time=False) is None
