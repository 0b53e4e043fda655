"""What all tests share: one seed, printed, from which every random choice of a run follows."""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import settings

SEED = int(os.environ.get("OTTLA_SEED") or random.SystemRandom().randrange(1 << 32))

# A test on a busy machine is slow without being wrong, so no deadline. A failure prints how to repeat it.
settings.register_profile("ottla", deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ottla"))


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed: {SEED} (repeat with OTTLA_SEED={SEED})"


@pytest.fixture(scope="session")
def seed() -> int:
    return SEED
