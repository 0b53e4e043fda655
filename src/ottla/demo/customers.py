"""One day in the change log of a customers table: customers join, their balances change, some leave.

In the afternoon a bad job deletes every second customer. The module is pure: the same seed gives the same day.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import NamedTuple

MINUTE_MS = 60_000
OPENS_AT, BAD_JOB_AT, CLOSES_AT = 8 * 60, 15 * 60, 18 * 60
"""Minutes of the day."""
LEAVES = 0.04
JOINS = 0.4


class CustomerChange(NamedTuple):
    """One change of a customer."""

    timestamp_ms: int
    id: int
    row: str | None
    """The row after the change, or None for a deleted customer."""


@dataclass
class Day:
    """The changes of one day and the resulting tables."""

    midnight_ms: int
    changes: list[CustomerChange] = field(default_factory=list)
    before: dict[int, str] = field(default_factory=dict)
    """The table just before the bad job."""
    after: dict[int, str] = field(default_factory=dict)
    """The table in the evening."""
    known: list[int] = field(default_factory=list)
    """Everyone who was a customer at any time."""
    bad_job_deleted: int = 0

    @property
    def bad_job_ms(self) -> int:
        """The time at which the faulty job damages the table."""
        return self.midnight_ms + BAD_JOB_AT * MINUTE_MS


def a_day(seed: int, midnight_ms: int, changes_a_minute: int = 40) -> Day:
    """Generates a day."""
    chance, day = random.Random(seed), Day(midnight_ms)
    table = day.after
    for minute in range(OPENS_AT, CLOSES_AT):
        at_ms = midnight_ms + minute * MINUTE_MS
        if minute == BAD_JOB_AT:
            day.before = dict(table)
            for number in sorted(table)[::2]:
                _change(day, at_ms, number, None)
            day.bad_job_deleted = len(day.before) - len(table)
        for turn in range(changes_a_minute):
            _some_change(chance, day, at_ms + 1 + turn * (MINUTE_MS - 2) // changes_a_minute)
    return day


def _some_change(chance: random.Random, day: Day, at_ms: int) -> None:
    if not day.after or chance.random() < JOINS:
        number = len(day.known)
        day.known.append(number)
    else:
        number = next(each for each in iter(lambda: chance.choice(day.known), None) if each in day.after)
        if chance.random() < LEAVES:
            _change(day, at_ms, number, None)
            return
    _change(day, at_ms, number, json.dumps({"id": number, "balance": chance.randrange(10_000)}))


def _change(day: Day, at_ms: int, number: int, row: str | None) -> None:
    day.changes.append(CustomerChange(at_ms, number, row))
    if row is None:
        del day.after[number]
    else:
        day.after[number] = row
