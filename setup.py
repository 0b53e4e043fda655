"""Builds the Cython extensions; everything else is in pyproject.toml.

Each extension has a plain Python twin, so an extension that does not compile is left out with a warning: a machine
without a C compiler gets a working, slower Ottla. Set OTTLA_REQUIRE_EXTENSIONS=1 to make that an error instead, for
example when building wheels for others. The kernel of the simulation is its own twin: each of its modules is plain
Python, which is compiled with the types of the .pxd beside it.
"""

import os
import subprocess
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CCompilerError

REQUIRED = os.environ.get("OTTLA_REQUIRE_EXTENSIONS") == "1"
SOURCES = sorted(Path("src").glob("ottla/**/*.pyx"))
DIRECTIVES = {"boundscheck": False, "wraparound": False, "cdivision": True, "embedsignature": True}
SIMULATION = sorted(path.with_suffix(".py") for path in Path("src").glob("ottla/sim/*.pxd"))
"""Plain Python modules that are also compiled, with the types of the .pxd beside each: the module is its own twin."""
SIMULATION_DIRECTIVES = {"annotation_typing": False, "embedsignature": True}
"""They keep every rule of Python, because both forms must give the same histories."""
GENERATED_C = "build/cython"
"""Outside of the package, so that no distribution contains it."""
BUILD_FAILURES = (CCompilerError, BaseError, OSError, subprocess.SubprocessError)
"""A compiler that is missing, fails or finds no Python headers. Errors of Cython itself are bugs and are not caught."""


def extension(source: Path) -> Extension:
    name = ".".join(source.with_suffix("").parts[1:])
    # A fused multiplication and addition would round differently than Python does.
    arguments = ["-O3"] if source.suffix == ".pyx" else ["-O1", "-g0", "-ffp-contract=off"]
    return Extension(name, [str(source)], extra_compile_args=arguments, libraries=["pthread"], optional=not REQUIRED)


class BuildOptionalExtensions(build_ext):
    """Cythonizes only when extensions are built: an sdist then lists the .pyx files as the sources."""

    failed_simulation = False

    def build_extension(self, ext: Extension) -> None:
        is_simulation = Path(ext.sources[0]) in SIMULATION
        if is_simulation and self.failed_simulation:
            return
        directives = SIMULATION_DIRECTIVES if is_simulation else DIRECTIVES
        # cythonize() returns a new Extension that has lost `optional`, so only its sources are taken.
        [generated] = cythonize(
            [ext], build_dir=GENERATED_C, language_level=3, compiler_directives=directives, quiet=self.verbose == 0
        )
        ext.sources = generated.sources
        try:
            super().build_extension(ext)
        except BUILD_FAILURES as failure:
            if REQUIRED:
                raise
            # A binary of an earlier build must not stand in for a source that no longer compiles. The modules of the
            # simulation share their types in C, so one that is missing takes all of them with it.
            names = [extension(source).name for source in SIMULATION] if is_simulation else [ext.name]
            for name in names:
                Path(self.get_ext_fullpath(name)).unlink(missing_ok=True)
            self.failed_simulation |= is_simulation
            self.warn(f"{ext.name} did not compile, plain Python is used instead: {failure}")


setup(
    ext_modules=[extension(source) for source in [*SOURCES, *SIMULATION]],
    cmdclass={"build_ext": BuildOptionalExtensions},
)
