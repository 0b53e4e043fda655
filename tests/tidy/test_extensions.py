"""Each Cython module has types, a plain Python twin that is its oracle, and is really built where it can be."""

from __future__ import annotations

import importlib.util
import shutil
import sysconfig
from pathlib import Path

import pytest

from tests.tidy.tree import package_sources, relative

EXTENSIONS = [path for path in package_sources() if path.suffix == ".pyx"]


def twin_of(extension: Path) -> Path:
    """`_crc.pyx` is the twin of `_crc_py.py` or of `crc.py`."""
    names = (f"{extension.stem}_py.py", f"{extension.stem}_twin.py", f"{extension.stem.strip('_')}.py")
    for name in names:
        if (twin := extension.with_name(name)).exists():
            return twin
    pytest.fail(f"{relative(extension)} has no Python twin ({' or '.join(names)}) beside it")


@pytest.mark.parametrize("extension", EXTENSIONS, ids=relative)
def test_has_types(extension: Path) -> None:
    assert extension.with_suffix(".pyi").exists()


@pytest.mark.parametrize("extension", EXTENSIONS, ids=relative)
def test_has_a_twin(extension: Path) -> None:
    assert twin_of(extension).exists()


@pytest.mark.parametrize("extension", EXTENSIONS, ids=relative)
def test_is_built_where_there_is_a_compiler(extension: Path) -> None:
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        pytest.skip(f"no C compiler ({compiler}) on this machine")
    name = ".".join(Path(relative(extension)).with_suffix("").parts[1:])
    spec = importlib.util.find_spec(name)
    assert spec is not None, f"{name} is not built: run 'make setup'"
    assert spec.origin is not None
    assert spec.origin.endswith(".so"), f"{name} is not built: run 'make setup'"
