"""Downloads what the tests need in addition to Python packages.

This is kcat, the Java client with its driver, Apache Kafka's brokers, Spark's own Kafka connector, a Go client of the
append stream that is built from its proto, and a PostgreSQL server. Components that are not available are
reported and skipped, and pytest's summary names the tests that need them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
JAVA_SOURCES = ROOT / "tests" / "conformance" / "java"
JAVA_CACHE = ROOT / ".cache" / "java"
JAVA_PROGRAMS = ("ChainWorker", "Driver", "GroupMember", "Transactions", "TransactionsAdmin")
JAVA_MAJOR_MIN = 17
GO_SOURCES = ROOT / "tests" / "conformance" / "go"
GO_CACHE = ROOT / ".cache" / "go"
GO_PLUGINS = (
    "google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.12",
    "google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.2",
)
WAL_PROTO = ROOT / "src" / "ottla" / "broker" / "wal_service" / "wal.proto"


def main() -> int:
    steps = {
        "kcat": prepare_kcat,
        "Java client": prepare_java,
        "Apache Kafka": prepare_kafka,
        "Spark's Kafka connector": prepare_spark_connector,
        "Go client": prepare_go,
        "PostgreSQL": prepare_postgres,
    }
    for name, prepare in steps.items():
        try:
            print(f"{name}: {prepare()}")
        except (OSError, subprocess.CalledProcessError, LookupError) as problem:
            print(f"{name}: skipped, {problem}", file=sys.stderr)
    return 0


def prepare_kcat() -> str:
    return f"ready ({installed('kcat', 'kcat')})"


def prepare_java() -> str:
    if java_is_ready():
        return "ready"
    javac = installed("javac", "default-jdk-headless")
    maven = installed("mvn", "maven")
    libraries = JAVA_CACHE / "libraries"
    shutil.rmtree(JAVA_CACHE, ignore_errors=True)
    JAVA_CACHE.mkdir(parents=True)
    run(maven, "-q", "-B", "-f", str(JAVA_SOURCES / "pom.xml"), "dependency:copy-dependencies",
        f"-DoutputDirectory={libraries}")  # fmt: skip
    run(javac, "--release", str(JAVA_MAJOR_MIN), "-d", str(JAVA_CACHE / "classes"), "-cp", f"{libraries}/*",
        *(str(JAVA_SOURCES / f"{name}.java") for name in JAVA_PROGRAMS))  # fmt: skip
    return "ready, fetched and compiled"


def prepare_kafka() -> str:
    """Apache Kafka's brokers, for the test of the benchmark suite, which knows where they are kept."""
    from ottla.bench.suite.kafka_jars import KafkaUnavailableError, kafka_libraries

    installed("java", "default-jdk-headless")
    installed("mvn", "maven")
    try:
        return f"ready ({kafka_libraries().name})"
    except KafkaUnavailableError as problem:
        raise LookupError(str(problem)) from problem


def prepare_go() -> str:
    """The Go client. Only the proto is ours: protoc and Go's plugins generate the client's code."""
    program = GO_CACHE / "walclient"
    sources = [WAL_PROTO, *GO_SOURCES.iterdir()]
    if program.exists() and program.stat().st_mtime >= max(path.stat().st_mtime for path in sources):
        return "ready"
    if (go := shutil.which("go")) is None:
        raise LookupError("go is not installed (1.24 or newer)")
    made = GO_CACHE / "source"
    shutil.rmtree(made, ignore_errors=True)
    shutil.copytree(GO_SOURCES, made)
    (made / "wal").mkdir()
    environment = {**os.environ, "GOBIN": str(GO_CACHE / "bin"), "PATH": f"{GO_CACHE / 'bin'}:{os.environ['PATH']}"}
    for plugin in GO_PLUGINS:
        run(go, "install", plugin, environment=environment)
    package = "Mwal.proto=ottla.dev/walclient/wal"
    run(sys.executable, "-m", "grpc_tools.protoc", f"-I{WAL_PROTO.parent}", f"--go_out={made / 'wal'}",
        f"--go-grpc_out={made / 'wal'}", f"--go_opt={package},paths=source_relative",
        f"--go-grpc_opt={package},paths=source_relative", WAL_PROTO.name, environment=environment)  # fmt: skip
    run(go, "build", "-C", str(made), "-o", str(program), ".", environment=environment)
    return "ready, fetched and compiled"


def prepare_spark_connector() -> str:
    """Spark's Kafka connector, for comparison with our source and sink."""
    from ottla.bench.suite.maven import MavenUnavailableError
    from ottla.bench.suite.spark_connector_jars import connector_libraries

    installed("mvn", "maven")
    try:
        return f"ready ({connector_libraries().name})"
    except MavenUnavailableError as problem:
        raise LookupError(str(problem)) from problem


def prepare_postgres() -> str:
    """A PostgreSQL server of any version, also outside of PATH, as on Debian. The package's server is not used."""
    kept = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if shutil.which("postgres") is None and not kept:
        install("postgresql", "a server")
    return "ready"


def java_is_ready() -> bool:
    """Returns whether the classes are newer than their sources."""
    compiled = [JAVA_CACHE / "classes" / f"{name}.class" for name in JAVA_PROGRAMS]
    sources = [JAVA_SOURCES / "pom.xml", *(JAVA_SOURCES / f"{name}.java" for name in JAVA_PROGRAMS)]
    return all(path.exists() for path in compiled) and (
        min(path.stat().st_mtime for path in compiled) >= max(path.stat().st_mtime for path in sources)
    )


def installed(program: str, package: str) -> str:
    """Returns the program's path. Installs its package if this user may."""
    if (path := shutil.which(program)) is not None:
        return path
    install(package, program)
    if (path := shutil.which(program)) is None:
        raise LookupError(f"{program} is missing after its package {package} was installed")
    return path


def install(package: str, wanted: str) -> None:
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise LookupError(f"{wanted} is not installed; this script can install it only as root on a Debian system")
    print(f"installing {package} for {wanted} ...", flush=True)
    run("apt-get", "-qq", "update")
    run("apt-get", "-qq", "install", "-y", "--no-install-recommends", package)


def run(*command: str, environment: dict[str, str] | None = None) -> None:
    environment = {**(environment or os.environ), "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last_line = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        raise OSError(f"{command[0]} failed: {last_line}")


if __name__ == "__main__":
    sys.exit(main())
