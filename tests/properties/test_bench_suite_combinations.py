"""Combinations of a matrix: pairwise rows cover every possible pair, and no row is an impossible one."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations, product

from hypothesis import given
from hypothesis import strategies as st

from ottla.bench.suite.combinations import full_product, pairwise
from ottla.bench.suite.settings import Value

FACTORS = st.dictionaries(
    st.sampled_from("abcdef"), st.lists(st.integers(0, 4), min_size=1, max_size=4, unique=True), min_size=1, max_size=5
)
FORBIDDEN = st.lists(st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 4), min_size=1, max_size=3), max_size=4)


def allows(forbidden: list[dict[str, int]], chosen: Mapping[str, Value]) -> bool:
    return not any(all(chosen.get(name) == value for name, value in each.items()) for each in forbidden)


@given(FACTORS, FORBIDDEN)
def test_pairwise_covers_each_pair_that_the_product_has(
    factors: dict[str, list[int]], forbidden: list[dict[str, int]]
) -> None:
    everything = full_product(factors, lambda chosen: allows(forbidden, chosen))
    cover = pairwise(factors, lambda chosen: allows(forbidden, chosen))

    def pairs(rows: list[dict[str, Value]]) -> set[tuple[str, Value, str, Value]]:
        return {(one, row[one], other, row[other]) for row in rows for one, other in combinations(factors, 2)}

    assert pairs(cover.rows) == pairs(everything)
    assert all(row in everything for row in cover.rows)
    possible = sum(len(factors[one]) * len(factors[other]) for one, other in combinations(factors, 2))
    if len(factors) > 1:
        assert cover.impossible == possible - len(pairs(everything))


@given(FACTORS)
def test_pairwise_is_never_more_than_everything(factors: dict[str, list[int]]) -> None:
    cover = pairwise(factors, lambda _: True)
    assert len(cover.rows) <= len(list(product(*factors.values())))


def test_hundreds_become_tens() -> None:
    factors = {name: [0, 1, 2] for name in "abcdef"}
    assert len(full_product(factors, lambda _: True)) == 729
    assert len(pairwise(factors, lambda _: True).rows) <= 22
