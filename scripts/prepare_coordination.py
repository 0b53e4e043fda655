"""Downloads etcd and ZooKeeper for the coordination tests into .cache. Installs nothing and starts no service.

A store that is not available is reported and skipped, and pytest's summary names the tests that need it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from prepare_clients import ROOT, installed, run

CACHE = ROOT / ".cache"
ZOOKEEPER_POM = ROOT / "tests" / "conformance" / "coordination" / "zookeeper-pom.xml"


def main() -> int:
    for name, prepare in (("etcd", prepare_etcd), ("ZooKeeper", prepare_zookeeper)):
        try:
            print(f"{name}: {prepare()}")
        except (OSError, subprocess.CalledProcessError, LookupError) as problem:
            print(f"{name}: skipped, {problem}", file=sys.stderr)
    return 0


def prepare_etcd() -> str:
    """Extracts etcd from Debian's package without installing it, which would also start a service."""
    program = CACHE / "etcd" / "usr" / "bin" / "etcd"
    if (found := shutil.which("etcd")) is not None or program.exists():
        return f"ready ({found or program.relative_to(ROOT)})"
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise LookupError("etcd is not on the path; this script can fetch it only on a Debian system")
    if os.geteuid() == 0:
        run("apt-get", "-qq", "update")
    CACHE.mkdir(exist_ok=True)  # dpkg-deb creates only the last directory of a path
    with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory):
        run("apt-get", "-qq", "download", "etcd-server")
        (package,) = Path(directory).glob("etcd-server*.deb")
        run("dpkg-deb", "-x", str(package), str(CACHE / "etcd"))
    return "ready, fetched"


def prepare_zookeeper() -> str:
    libraries = CACHE / "zookeeper"
    stamp = libraries / "complete"
    if stamp.exists() and stamp.stat().st_mtime >= ZOOKEEPER_POM.stat().st_mtime:
        return "ready"
    installed("java", "default-jdk-headless")
    maven = installed("mvn", "maven")
    shutil.rmtree(libraries, ignore_errors=True)
    run(maven, "-q", "-B", "-f", str(ZOOKEEPER_POM), "dependency:copy-dependencies", f"-DoutputDirectory={libraries}")
    stamp.touch()
    return "ready, fetched"


if __name__ == "__main__":
    sys.exit(main())
