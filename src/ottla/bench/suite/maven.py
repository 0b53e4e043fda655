"""Resolves the jars of other systems with Maven into a cache directory, once."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

CACHE_VARIABLE = "OTTLA_BENCH_CACHE"
MAVEN_TIMEOUT_S = 900.0


class MavenUnavailableError(Exception):
    """The jars are not available here. The message says why."""


def cache_directory() -> Path:
    """Returns the directory for downloads: the environment variable, or `ottla` in the user's cache."""
    if named := os.environ.get(CACHE_VARIABLE):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ottla"


def cached_jars(pom: Path, name: str) -> Path:
    """Returns the directory of the jars, if they were downloaded. A changed pom gets another directory."""
    digest = hashlib.sha256(pom.read_bytes()).hexdigest()[:8]
    return cache_directory() / f"{name}-{digest}"


def resolved_jars(pom: Path, name: str, *, only: Sequence[str] = ()) -> Path:
    """Returns the directory of the jars that a pom names, or of the artifacts in `only`. Downloads them if missing."""
    folder = cached_jars(pom, name)
    if folder.exists():
        return folder
    maven = shutil.which("mvn")
    if maven is None:
        raise MavenUnavailableError(f"mvn (Maven) was not found; it is needed to fetch the jars of {name}")
    draft = folder.with_name(f"{folder.name}.{os.getpid()}")
    draft.mkdir(parents=True)
    try:
        _fetch(maven, pom, draft, only)
        draft.rename(folder)
    except OSError:
        if not folder.exists():  # unless another process was faster
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


def _fetch(maven: str, pom: Path, folder: Path, only: Sequence[str]) -> None:
    command = [maven, "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
    command += [f"-DincludeArtifactIds={','.join(only)}"] if only else []
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=MAVEN_TIMEOUT_S)
    except subprocess.TimeoutExpired as cause:
        raise MavenUnavailableError(f"Maven did not fetch the jars within {MAVEN_TIMEOUT_S:.0f} s") from cause
    if done.returncode != 0:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if "ERROR" in line]
        raise MavenUnavailableError(f"Maven could not fetch the jars: {(lines or ['no reason given'])[0]}")
