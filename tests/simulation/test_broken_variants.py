"""The simulations are effective: a checker detects each deliberately broken variant.

`python -m tests.simulation.broken` prints which seed detects which variant.
"""

from __future__ import annotations

import pytest

from tests.simulation.broken.__main__ import VARIANTS
from tests.simulation.broken.editing import Edit, StaleEditError, edited
from tests.simulation.broken.variants import SEEDS_MAX, Variant, catch, known_first
from tests.simulation.log_run import LogRun

PINNED_LOGS = (78,)
"""Found truncated records that reappeared with a rewritten segment."""


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_a_broken_variant_is_caught(variant: Variant) -> None:
    caught = catch(variant, known_first(variant))
    assert caught is not None, f"no checker of {sorted(variant.checkers)} saw in {SEEDS_MAX} seeds: {variant.breaks}"


@pytest.mark.parametrize("seed", sorted({*range(20), *PINNED_LOGS}), ids=lambda seed: f"seed-{seed}")
def test_logs_as_they_are_keep_what_they_acknowledged(seed: int) -> None:
    LogRun(seed).execute()


# -- edits -----------------------------------------------------------------------------------------------------------


class Lamp:
    def shines(self) -> bool:
        return True

    @property
    def colour(self) -> str:
        return "white"


def test_an_edit_lasts_as_long_as_its_block() -> None:
    lamp = Lamp()
    with edited([Edit(Lamp, "shines", "True", "False"), Edit(Lamp, "colour", "white", "black")]):
        assert not lamp.shines()
        assert lamp.colour == "black"
    assert lamp.shines()
    assert lamp.colour == "white"


@pytest.mark.parametrize(
    "edit",
    [
        pytest.param(Edit(Lamp, "glows", "True", "False"), id="no such method"),
        pytest.param(Edit(Lamp, "shines", "Maybe", "False"), id="no such place"),
        pytest.param(Edit(Lamp, "shines", "e", "f"), id="many such places"),
    ],
)
def test_an_edit_that_does_not_fit_the_code_is_an_error(edit: Edit) -> None:
    with pytest.raises(StaleEditError), edited([edit]):
        pass
    assert Lamp().shines()
