"""The operating system user that will run a restored PostgreSQL, and whether that user can fetch WAL from the log.

It is often not the user who runs `ottla restore postgres`. A server that cannot run its restore_command stops in the
middle of recovery, so this is checked before anything is restored.
"""

from __future__ import annotations

import os
import pwd
import shlex
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import ottla
from ottla.connect.postgres_wal import restore_client
from ottla.connect.postgres_wal.failures import RefusedError

DEFAULT_USER = "postgres"
CHECK_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class ServerUser:
    """A user of the operating system."""

    name: str
    uid: int
    gid: int

    @property
    def groups(self) -> list[int]:
        """The ids of all groups of the user, the primary one included."""
        return os.getgrouplist(self.name, self.gid)


def find_server_user(name: str | None) -> ServerUser | None:
    """Returns the user that will run PostgreSQL; None means the user of this process. Raises RefusedError.

    The default is the user of this process, or `postgres` if that is root, because PostgreSQL does not run as root.
    """
    me = os.geteuid()
    if name is None and me != 0:
        return None
    try:
        entry = pwd.getpwnam(name or DEFAULT_USER)
    except KeyError:
        there = f"the user {name or DEFAULT_USER!r} does not exist on this machine"
        raise RefusedError(f"{there}; choose the user that will run PostgreSQL with --server-user") from None
    if entry.pw_uid == me:
        return None
    if me != 0:
        raise RefusedError(
            f"only root can make {entry.pw_name!r} the owner of a data directory. Restore as that user: "
            f"sudo -u {shlex.quote(entry.pw_name)} ottla restore postgres ..."
        )
    return ServerUser(entry.pw_name, entry.pw_uid, entry.pw_gid)


def check_server_user(user: ServerUser | None, server: Sequence[str], directory: Path) -> None:
    """Checks that the user can run the commands in restore_command and that they reach the log. Raises RefusedError."""
    client = [sys.executable, "-I", "-S", restore_client.__file__, "--check"]
    for command in (client, [*server, "--check", str(directory)]):
        problem = _try(user, command)
        if problem is not None:
            who = "this user" if user is None else f"the user {user.name!r}, who is to run PostgreSQL,"
            raise RefusedError(
                f"{who} cannot fetch WAL from the log, without which the server would stop during its "
                f"recovery: {problem}. {_advice(user)}Nothing was restored"
            )


def _try(user: ServerUser | None, command: Sequence[str]) -> str | None:
    """Returns the problem with a command, or None. It runs in / because the server's directory does not exist yet."""
    try:
        done = subprocess.run(
            command,
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=CHECK_TIMEOUT_S,
            check=False,
            user=None if user is None else user.uid,
            group=None if user is None else user.gid,
            extra_groups=None if user is None else user.groups,
        )
    except OSError as failure:
        return f"{command[0]} cannot be run ({failure.strerror})"
    except subprocess.TimeoutExpired:
        return f"no response within {CHECK_TIMEOUT_S:g} seconds from {shlex.join(command)}"
    if done.returncode == 0:
        return None
    return str(done.stderr).strip()[-1000:].rstrip(".") or f"{shlex.join(command)} ended with code {done.returncode}"


def _advice(user: ServerUser | None) -> str:
    """Names the first directory that the user cannot pass on the way to Python or ottla."""
    if user is None:
        return ""
    groups = {user.gid, *user.groups}
    for needed in (sys.executable, os.path.realpath(sys.executable), os.path.dirname(str(ottla.__file__))):
        for place in _from_root(Path(needed)):
            if not _may_pass(place, user.uid, groups):
                return (
                    f"it has no access to {place}. Grant it (chmod o+rx {shlex.quote(str(place))}), or install "
                    "ottla where every user can run it, such as in a virtual environment below /opt. "
                )
    return ""


def _from_root(path: Path) -> Iterator[Path]:
    yield from reversed(path.parents)
    yield path


def _may_pass(place: Path, uid: int, groups: set[int]) -> bool:
    """Returns whether the user may enter a directory or run a program."""
    found = place.stat()
    if found.st_uid == uid:
        return bool(found.st_mode & stat.S_IXUSR)
    if found.st_gid in groups:
        return bool(found.st_mode & stat.S_IXGRP)
    return bool(found.st_mode & stat.S_IXOTH)


def give_to(user: ServerUser, directory: Path) -> None:
    """Changes the owner of a directory and everything in it."""
    for place, directories, files in os.walk(directory):
        for name in (".", *directories, *files):
            os.lchown(os.path.join(place, name), user.uid, user.gid)
