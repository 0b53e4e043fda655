"""Chooses the combinations of a matrix to measure: all of them, or a few that cover every pair of values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import NamedTuple

from ottla.bench.suite.settings import Value

Factors = Mapping[str, Sequence[Value]]
Chosen = dict[str, Value]
Allowed = Callable[[Mapping[str, Value]], bool]
"""Returns whether values are compatible. With only some of the factors, returns whether there is no conflict yet."""


class Cover(NamedTuple):
    """A set of combinations that covers all pairs of values."""

    rows: list[Chosen]
    impossible: int
    """How many pairs occur in no allowed combination."""


class _Pair(NamedTuple):
    one: str
    one_at: int
    other: str
    other_at: int


def full_product(factors: Factors, allowed: Allowed) -> list[Chosen]:
    """Returns every allowed combination; the last factor changes fastest."""
    rows = (dict(zip(factors, values, strict=True)) for values in product(*factors.values()))
    return [row for row in rows if allowed(row)]


def pairwise(factors: Factors, allowed: Allowed) -> Cover:
    """Returns a few combinations in which every two values of two factors occur together, if they are compatible.

    The algorithm is greedy: a row begins with an uncovered pair, and then each factor gets the value that covers most.
    The same factors always give the same rows.
    """
    if len(factors) < 2:
        return Cover(full_product(factors, allowed), 0)
    left = dict.fromkeys(_pairs(factors))
    rows: list[Chosen] = []
    impossible = 0
    while left:
        seed = next(iter(left))
        row = _complete(factors, allowed, {seed.one: seed.one_at, seed.other: seed.other_at}, left)
        if row is None:
            del left[seed]
            impossible += 1
            continue
        for pair in _pairs_in(row, factors):
            left.pop(pair, None)
        rows.append({name: factors[name][at] for name, at in row.items()})
    return Cover(rows, impossible)


def _pairs(factors: Factors) -> Iterator[_Pair]:
    for one, other in combinations(factors, 2):
        for one_at, other_at in product(range(len(factors[one])), range(len(factors[other]))):
            yield _Pair(one, one_at, other, other_at)


def _pairs_in(row: Mapping[str, int], factors: Factors) -> Iterator[_Pair]:
    for one, other in combinations([name for name in factors if name in row], 2):
        yield _Pair(one, row[one], other, row[other])


def _complete(
    factors: Factors, allowed: Allowed, begun: Mapping[str, int], left: Mapping[_Pair, None]
) -> dict[str, int] | None:
    """Returns a complete row with these positions, or None if there is none. Tries the values that cover most first."""
    if not allowed({name: factors[name][at] for name, at in begun.items()}):
        return None
    name = next((each for each in factors if each not in begun), None)
    if name is None:
        return {each: begun[each] for each in factors}

    def gain(at: int) -> int:
        return sum(pair in left for pair in _pairs_in({**begun, name: at}, factors))

    for at in sorted(range(len(factors[name])), key=lambda each: (-gain(each), each)):
        row = _complete(factors, allowed, {**begun, name: at}, left)
        if row is not None:
            return row
    return None
