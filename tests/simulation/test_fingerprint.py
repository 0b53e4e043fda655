"""A seed has one history: in any process, with any hashes, and whether the kernel is compiled or not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.compiled_kernel import compiled_form_of, kernel_sources, stale_modules

ROOT = Path(__file__).resolve().parents[2]
PLAIN = "from tests.support.compiled_kernel import use_plain_python; use_plain_python(); "
PRINT = (
    "import logging, sys; logging.disable(); "
    "from tests.simulation.campaign.outcomes import Kind; from tests.simulation.fingerprint import fingerprint; "
    "import ottla.sim.turns; "
    "print(ottla.sim.turns.__file__.endswith('.py'), fingerprint(Kind(sys.argv[1]), int(sys.argv[2])))"
)


def printed(script: str, kind: str, seed: int, hash_seed: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", script, kind, str(seed)],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        check=True,
        text=True,
    )
    return done.stdout.split()


@pytest.mark.parametrize(("kind", "seed"), [("clusters", 1), ("wal", 0), ("log", 0)])
def test_the_plain_and_the_compiled_kernel_have_the_same_history(kind: str, seed: int) -> None:
    is_plain, history = printed(PLAIN + PRINT, kind, seed, "1")
    assert is_plain == "True"
    assert printed(PRINT, kind, seed, "2")[1] == history


def test_all_of_the_kernel_is_compiled_or_none_of_it() -> None:
    """The compiled modules share their types in C: with one of them in plain Python, none can be imported."""
    assert len(kernel_sources()) > 5
    assert len({compiled_form_of(source) is None for source in kernel_sources()}) == 1


def test_a_source_that_is_newer_than_its_compiled_module_is_found() -> None:
    assert not stale_modules(), "run `make setup`"
    source = kernel_sources()[0]
    if compiled_form_of(source) is None:
        pytest.skip("the kernel is not compiled")
    before = source.stat()
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns + 10**18))
    try:
        assert stale_modules() == [source.name]
    finally:
        os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))
