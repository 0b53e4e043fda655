"""Starts a restored server with the pg_ctl of its version and waits until it has finished recovery."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import time
from pathlib import Path

from ottla.connect.postgres_wal.server_user import ServerUser

POLL_S = 0.2
LOG_NAME = "ottla-restore.log"
_STATUS_LINE = 7  # line in postmaster.pid: starting, standby, ready, stopping
DIRECTORIES = (
    "/usr/lib/postgresql/{version}/bin",
    "/usr/pgsql-{version}/bin",
    "/opt/homebrew/opt/postgresql@{version}/bin",
)


def find_pg_ctl(version: int) -> Path | None:
    """Finds the pg_ctl of the given version, the only one that can use the data directory."""
    places = [Path(place.format(version=version)) / "pg_ctl" for place in DIRECTORIES]
    if (found := shutil.which("pg_ctl")) is not None:
        places.insert(0, Path(found))
    return next((each for each in places if each.exists() and _version_of(each) == version), None)


def _version_of(program: Path) -> int | None:
    answer = subprocess.run([str(program), "--version"], capture_output=True, text=True, check=False).stdout
    words = answer.split()
    number = words[2].split(".")[0] if len(words) > 2 else ""
    return int(number) if number.isdigit() else None


def start_command(program: Path | None, directory: Path, port: int | None) -> list[str]:
    """Returns the command that starts the server, with hot_standby off, so that nobody connects before recovery
    ends."""
    options = "-c hot_standby=off" + ("" if port is None else f" -c port={port}")
    return [str(program or "pg_ctl"), "-D", str(directory), "-l", str(directory / LOG_NAME), "-o", options, "start"]


def start_and_wait(command: list[str], directory: Path, user: ServerUser | None) -> str | None:
    """Starts the server and waits until it accepts connections, however long the replay takes.

    Returns None, or the reason why it did not start. If `user` is None, it runs as the user of this process.
    """
    if os.geteuid() == 0 and user is None:
        return (
            "PostgreSQL does not run as root. Change the owner of the directory and start it as that user: "
            f"chown -R postgres {shlex.quote(str(directory))} && su postgres -c "
            f"{shlex.quote(shlex.join(command))}"
        )
    started = subprocess.run(
        command,
        cwd=directory,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        user=None if user is None else user.uid,
        group=None if user is None else user.gid,
        extra_groups=None if user is None else user.groups,
    )
    pid_file = directory / "postmaster.pid"
    if started.returncode == 0:
        while (status := _status(pid_file)) not in (None, "ready"):
            time.sleep(POLL_S)
        if status == "ready":
            return None
    logged = directory / LOG_NAME
    said = logged.read_text(errors="replace")[-2000:] if logged.exists() else started.stderr
    return f"the server did not start; its output:\n{said}"


def _status(pid_file: Path) -> str | None:
    """Returns the status in postmaster.pid; None if the server is not running."""
    try:
        lines = pid_file.read_text().splitlines()
        os.kill(int(lines[0]), 0)
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return None
    return lines[_STATUS_LINE].strip() if len(lines) > _STATUS_LINE else "starting"
