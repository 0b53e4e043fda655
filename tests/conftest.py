"""Configuration shared by all tests: one seed, printed in the header, determines every random choice of a run."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support.compiled_kernel import stale_modules

SEED_OF_RUN = "OTTLA_SEED_OF_RUN"
"""Passes the seed from the main process to its workers (pytest -n 2), so that all use the printed seed."""
SEED = int(os.environ.get("OTTLA_SEED") or os.environ.get(SEED_OF_RUN) or random.SystemRandom().randrange(1 << 32))
os.environ[SEED_OF_RUN] = str(SEED)

SETTINGS_OF_THE_USER = (
    "COLUMNS",
    "LINES",
    "NO_COLOR",
    "FORCE_COLOR",
    "OTTLA_BOOTSTRAP",
    "OTTLA_WAL",
    "OTTLA_WAL_SERVERS",
)
"""Variables that change what commands print or which cluster they use. Tests that depend on one set it themselves."""
for _name in SETTINGS_OF_THE_USER:
    os.environ.pop(_name, None)

TESTS = Path(__file__).parent
LONG_FILES = (
    "conformance/test_write_and_read.py",
    "processes/test_cluster_cli.py",
    "processes/test_siege.py",
    "processes/test_install.py",
    "processes/test_readme.py",
    "processes/groups/test_groups.py",
    "processes/transactions/test_chain.py",
    "conformance/test_leaders_change.py",
    "conformance/test_own_transactions.py",
    "conformance/test_transactions.py",
    "processes/test_kills.py",
    "conformance/test_group_admin.py",
    "conformance/test_own_client.py",
    "processes/test_bench_suite.py",
    "spark/test_cluster_kills.py",
    "spark/test_connector.py",
    "spark/test_sink_kills.py",
    "spark/jobs/test_restore.py",
    "spark/jobs/test_materialize_postgres.py",
)
"""Files that take minutes. They run first; otherwise a worker that starts one last keeps the others waiting."""

# No deadline: a test on a busy machine may be slow without being wrong. A failure prints how to repeat it.
settings.register_profile("ottla", deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ottla"))


def pytest_configure(config: pytest.Config) -> None:
    if stale := stale_modules():
        raise pytest.UsageError(f"run `make setup`: changed since they were compiled: {', '.join(stale)}")


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed: {SEED} (repeat with OTTLA_SEED={SEED})"


@pytest.fixture(scope="session")
def seed() -> int:
    return SEED


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Moves the long files to the front; all others keep their order."""
    places = {TESTS / name: place for place, name in enumerate(LONG_FILES)}
    items.sort(key=lambda item: places.get(item.path, len(places)))
