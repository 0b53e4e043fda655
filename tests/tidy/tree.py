"""The files of the repository that the rules apply to."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE_SUFFIXES = frozenset({".py", ".pyx", ".pyi"})


@cache
def files() -> tuple[Path, ...]:
    """Every file that is tracked or would be, without ignored ones."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout.split(b"\0")
    paths = {ROOT / name.decode() for name in listed if name}
    return tuple(sorted(path for path in paths if path.is_file()))


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def sources() -> list[Path]:
    return [path for path in files() if path.suffix in SOURCE_SUFFIXES]


def package_sources() -> list[Path]:
    return [path for path in sources() if relative(path).startswith("src/ottla/")]


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()
