"""Each Cython module has type stubs and a plain Python twin as its oracle, and is built where possible."""

from __future__ import annotations

import importlib.util
import re
import shutil
import sysconfig
from pathlib import Path

import pytest

from tests.support.compiled_kernel import kernel_sources
from tests.tidy.tree import package_sources, relative

EXTENSIONS = [path for path in package_sources() if path.suffix == ".pyx"]
ALSO_COMPILED = kernel_sources()
"""Plain Python modules that are their own twins."""


def twins_of(extension: Path) -> list[Path]:
    """The Python modules beside it that replace it when it is not built."""
    modules = [path for path in package_sources() if path.parent == extension.parent and path.suffix == ".py"]
    return [
        path
        for path in modules
        if re.search(rf"\b{extension.stem}\b", text := path.read_text(encoding="utf-8"))
        and "except ImportError" in text
    ]


@pytest.mark.parametrize("extension", EXTENSIONS, ids=relative)
def test_has_types(extension: Path) -> None:
    assert extension.with_suffix(".pyi").exists()


@pytest.mark.parametrize("extension", EXTENSIONS, ids=relative)
def test_has_a_twin(extension: Path) -> None:
    assert twins_of(extension), "no module beside it falls back to Python when it is not built (except ImportError)"


@pytest.mark.parametrize("extension", [*EXTENSIONS, *ALSO_COMPILED], ids=relative)
def test_is_built_where_there_is_a_compiler(extension: Path) -> None:
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        pytest.skip(f"no C compiler ({compiler}) on this machine")
    name = ".".join(Path(relative(extension)).with_suffix("").parts[1:])
    spec = importlib.util.find_spec(name)
    assert spec is not None, f"{name} is not built: run 'make setup'"
    assert spec.origin is not None
    assert spec.origin.endswith(".so"), f"{name} is not built: run 'make setup'"
