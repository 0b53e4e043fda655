"""A copy of the repository, in which one module at a time is mutated. The working tree is never touched."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from tests.mutation.mutants import Mutant
from tests.mutation.targets import ROOT

LIMITED = 'ulimit -d 4194304; exec nice -n 10 "$0" "$@"'
"""A mutant may loop and allocate without end; 4 GiB are enough for the tests."""
OUTPUT_CHARACTERS_MAX = 20_000
BUILD = """
import runpy, sys, setuptools
build_all = setuptools.setup

def build_one(ext_modules, **options):
    [chosen] = [each for each in ext_modules if each.name == sys.argv[1]]
    chosen.extra_compile_args = ["-O1"]
    build_all(ext_modules=[chosen], script_args=["--quiet", "build_ext", "--inplace", "--force"], **options)

setuptools.setup = build_one
runpy.run_path("setup.py")
"""
"""Runs setup.py for one extension, with a faster compilation."""
BUILD_SECONDS_MAX = 300.0


class BuildError(Exception):
    """A mutant does not compile."""


@dataclass(frozen=True)
class Outcome:
    """The end of a command. The code is None if it ran out of time."""

    code: int | None
    output: str


class Sandbox:
    """Use it in a `with` block, which removes the copy at its end."""

    def __init__(self) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="ottla-mutation-", ignore_cleanup_errors=True)
        self.root = Path(self._temporary.name) / "tree"
        for path in _files():
            target = self.root / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / path, target)
        # Tests of the repository's rules ask git for its files.
        subprocess.run(["git", "init", "--quiet"], cwd=self.root, check=True)

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._temporary.cleanup()

    @contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[None]:
        """Puts a mutant into the copy while the block lasts. Raises BuildError if it does not compile."""
        path = self.root / mutant.module
        compiled = sorted(path.parent.glob(f"{path.stem}.*.so")) if path.suffix == ".pyx" else []
        kept = {each: each.read_bytes() for each in compiled}
        path.write_bytes(mutant.mutated)
        _forget_bytecode(path)
        try:
            if path.suffix == ".pyx":
                self._build(path, compiled)
            else:
                _check_syntax(mutant)
            yield
        finally:
            path.write_bytes(mutant.source)
            _forget_bytecode(path)
            for each, binary in kept.items():
                each.unlink(missing_ok=True)
                each.write_bytes(binary)

    def _build(self, path: Path, compiled: Sequence[Path]) -> None:
        for each in compiled:
            each.unlink()  # a loaded library must not be overwritten
        name = ".".join(path.relative_to(self.root / "src").with_suffix("").parts)
        built = self.run(["-c", BUILD, name], BUILD_SECONDS_MAX, {"OTTLA_REQUIRE_EXTENSIONS": "1"})
        if built.code != 0 or not list(path.parent.glob(f"{path.stem}.*.so")):
            raise BuildError(built.output)

    def run(
        self, arguments: Sequence[str], seconds_max: float, environment: Mapping[str, str] | None = None
    ) -> Outcome:
        """Runs Python in the copy. After `seconds_max` it is killed, with its children."""
        settings = {
            **os.environ,
            "PYTHONPATH": str(self.root / "src"),
            "PYTHONHASHSEED": "0",
            "OTTLA_SEED": "1",
            "TMPDIR": self._temporary.name,
            **(environment or {}),
        }
        process = subprocess.Popen(
            ["sh", "-c", LIMITED, sys.executable, *arguments],
            cwd=self.root,
            env=settings,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=seconds_max)
        except subprocess.TimeoutExpired:
            _kill_group(process)
            return Outcome(None, "")
        except BaseException:
            _kill_group(process)
            raise
        return Outcome(process.returncode, output[-OUTPUT_CHARACTERS_MAX:])


def _files() -> list[str]:
    """Returns what git tracks or would track, and the compiled extensions."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.split(b"\0")
    tracked = [name.decode() for name in listed if name]
    compiled = [path.relative_to(ROOT).as_posix() for path in (ROOT / "src").rglob("*.so")]
    return [name for name in (*tracked, *compiled) if (ROOT / name).is_file()]


def _forget_bytecode(path: Path) -> None:
    """Bytecode is recognised by the time, in seconds, and the size of its source: both may stay the same."""
    for cached in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        cached.unlink()


def _check_syntax(mutant: Mutant) -> None:
    try:
        compile(mutant.mutated, mutant.module, "exec", dont_inherit=True)
    except SyntaxError as error:
        raise BuildError(str(error)) from error


def _kill_group(process: subprocess.Popen[str]) -> None:
    """Kills a process and its children. It leads a group of its own, so nobody else is in there."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
