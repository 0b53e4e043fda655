"""Builds the Cython extensions; everything else is in pyproject.toml.

Each extension has a plain Python twin, so a machine without a C compiler still gets a working, slower Ottla:
that is why they are optional.
"""

from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

SOURCES = sorted(Path("src").glob("ottla/**/*.pyx"))


def extension(source: Path) -> Extension:
    name = ".".join(source.with_suffix("").parts[1:])
    return Extension(name, [str(source)], extra_compile_args=["-O3"], libraries=["pthread"], optional=True)


setup(
    ext_modules=cythonize(
        [extension(source) for source in SOURCES],
        language_level=3,
        compiler_directives={"boundscheck": False, "wraparound": False, "cdivision": True, "embedsignature": True},
    )
)
