"""Installs Ottla as users do: `pip install` without a C compiler, and the contents of sdist and wheel."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ottla.extensions import extension_names

ROOT = Path(__file__).parents[2]
PARTS = ("src", "scripts", "setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "CHANGELOG.md", "LICENSE")
INSTALL_TIMEOUT_S = 280
COMMAND_TIMEOUT_S = 60
READY = "ottla ready bootstrap="

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs a command with an empty PATH, so without a compiler. Fails if the command does."""
    empty = tmp_path_factory.mktemp("no-programs")

    def run_one(
        *command: str | Path, cwd: Path, check: bool = True, timeout_s: float = COMMAND_TIMEOUT_S, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if name not in ("CC", "PYTHONPATH")}
        environment = {**kept, "PATH": str(empty), **variables}
        done = subprocess.run(
            list(map(str, command)),
            cwd=cwd,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert not check or done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
        return done

    return run_one


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a copy of the repository without build products."""
    copy = tmp_path_factory.mktemp("tree")
    built = shutil.ignore_patterns("*.so", "*.c", "__pycache__", "*.egg-info")
    for name in PARTS:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=built)
        else:
            shutil.copy(ROOT / name, copy / name)
    return copy


@pytest.fixture(scope="module")
def installed(tree: Path, run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the programs of an environment with an isolated `pip install .`, made without a compiler."""
    environment = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", environment], check=True, timeout=COMMAND_TIMEOUT_S)
    programs = environment / "bin"
    download = [programs / "pip", "download", "--no-deps", "--dest", environment, "wheel"]
    if run(*download, cwd=tree, check=False).returncode != 0:
        pytest.skip("no package index is reachable, so build isolation has nothing to install")
    run(programs / "pip", "install", ".", cwd=tree, timeout_s=INSTALL_TIMEOUT_S)
    return programs


@pytest.fixture
def up(installed: Path, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Returns the bootstrap servers and the log of an `ottla up` of that environment."""
    log = tmp_path / "up.log"
    command = [str(installed / "ottla"), "up", "--port", "0", "--data", str(tmp_path / "data")]
    with log.open("wb") as errors, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as ottla:
        assert ottla.stdout is not None
        line = ottla.stdout.readline()
        try:
            assert line.startswith(READY), log.read_text()
            yield line.removeprefix(READY).strip(), log
        finally:
            ottla.terminate()
            ottla.wait(COMMAND_TIMEOUT_S)


def test_without_a_compiler_brokers_serve_and_say_once_what_is_missing(
    installed: Path, up: tuple[str, Path], tmp_path: Path
) -> None:
    bootstrap, log = up

    def ottla(*arguments: str, sent: str = "") -> str:
        command = [str(installed / "ottla"), *arguments, "--bootstrap", bootstrap]
        done = subprocess.run(
            command, input=sent, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, cwd=tmp_path, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    ottla("topics", "create", "orders", "--partitions", "3")
    values = [str(number) for number in range(10_000)]
    ottla("produce", "orders", "--compression", "lz4", sent="\n".join(values) + "\n")
    read = ottla("consume", "orders", "--from-beginning", "--max-records", str(len(values)))
    assert sorted(read.split(), key=int) == values
    warnings = [line for line in log.read_text().splitlines() if "compiled extensions are missing" in line]
    assert len(warnings) == 1, log.read_text()
    assert "C compiler" in warnings[0]
    assert "--force-reinstall" in warnings[0]
    assert "Traceback" not in log.read_text()


def test_the_doctor_names_the_missing_extensions(installed: Path, run: Run, tmp_path: Path) -> None:
    done = run(installed / "ottla", "doctor", "--json", "--data", tmp_path, cwd=tmp_path, check=False)
    [row] = [check for check in json.loads(done.stdout)["checks"] if check["name"] == "compiled extensions"]
    assert (row["status"], row["value"]) == ("warn", f"0 of {len(extension_names())}")
    assert "C compiler" in row["advice"]
    assert all(name in row["advice"] for name in extension_names())


@pytest.mark.parametrize("compiler", [None, "/bin/false"], ids=["no compiler", "a compiler that fails"])
def test_a_wheel_has_no_sources_of_extensions(tree: Path, run: Run, tmp_path: Path, compiler: str | None) -> None:
    build = "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"
    variables = {} if compiler is None else {"CC": compiler}
    run(sys.executable, "-c", build, tmp_path, cwd=tree, timeout_s=INSTALL_TIMEOUT_S, **variables)
    [wheel] = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert [name for name in names if name.endswith((".c", ".pyx", ".pxi", ".pxd", ".so"))] == []
    sources = {str(path.relative_to(tree / "src")) for path in (tree / "src" / "ottla").rglob("*.py")}
    stubs = {name.replace(".", "/") + ".pyi" for name in extension_names()}
    others = {"ottla/py.typed", "ottla/broker/wal_service/wal.proto", "ottla/broker/wal_service/wal.pb"}
    assert sources | stubs | others <= set(names)


def test_an_sdist_has_the_cython_sources_and_no_generated_c(tree: Path, run: Run, tmp_path: Path) -> None:
    build = "import sys; from setuptools import build_meta; print(build_meta.build_sdist(sys.argv[1]))"
    run(sys.executable, "-c", build, tmp_path, cwd=tree)
    [archive] = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    cython = (".pyx", ".pxi", ".pxd")
    wanted = {str(path.relative_to(tree)) for path in (tree / "src").rglob("*") if path.suffix in cython}
    assert wanted
    assert wanted | {"setup.py", "pyproject.toml", "README.md", "LICENSE"} <= names
    assert [name for name in names if name.endswith((".c", ".so"))] == []


def test_an_editable_install_without_a_compiler_says_what_is_missing(tree: Path, run: Run, tmp_path: Path) -> None:
    """The steps of `make setup`."""
    build = "import sys; from setuptools import build_meta; print(build_meta.build_editable(sys.argv[1]))"
    run(sys.executable, "-c", build, tmp_path, cwd=tree, timeout_s=INSTALL_TIMEOUT_S)
    run(
        *(sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"),
        cwd=tree,
        timeout_s=INSTALL_TIMEOUT_S,
    )
    done = run(sys.executable, "scripts/extensions_built.py", cwd=tree, PYTHONPATH="src")
    assert done.stdout.split() == [word for name in extension_names() for word in ("PYTHON", "TWIN", name)]
    assert f"{len(extension_names())} of {len(extension_names())} compiled extensions are missing" in done.stderr


def test_a_build_for_others_can_require_the_extensions(tree: Path, run: Run) -> None:
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "--force"]
    done = run(*command, cwd=tree, check=False, timeout_s=INSTALL_TIMEOUT_S, OTTLA_REQUIRE_EXTENSIONS="1")
    assert done.returncode != 0
