"""The repository contains nothing of one machine, no empty test folder, and a continuous changelog."""

from __future__ import annotations

import re

from tests.tidy.tree import ROOT, files, lines, relative

# Split in two, so that this file does not break its own rule.
MACHINE_PATHS = tuple("/" + name + "/" for name in ("work", "root", "home", "Users", "tmp"))
REGISTRY_HOSTS = tuple(
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("maven", "apache", "org"),
        ("maven", "org"),
        ("deb", "debian", "org"),
        ("npmjs", "org"),
        ("docker", "io"),
        ("ghcr", "io"),
        ("crates", "io"),
    )
)
MACHINE_PATH = re.compile(r"(?<![\w.}>)-])(?:" + "|".join(map(re.escape, MACHINE_PATHS)) + ")")
SUPPRESSION = re.compile(r"#\s*(?:noqa(?::\s*[A-Z]+\d+(?:,\s*[A-Z]+\d+)*)?|type:\s*ignore(?:\[[\w, -]+\])?)(.*)$")


def text_lines() -> list[tuple[str, int, str]]:
    found = []
    for path in files():
        try:
            found += [(relative(path), number, line) for number, line in enumerate(lines(path), 1)]
        except (UnicodeDecodeError, FileNotFoundError):  # not text, or removed by a running test
            continue
    return found


def test_no_path_of_one_machine() -> None:
    bad = [f"{name}:{number}: {line.strip()}" for name, number, line in text_lines() if MACHINE_PATH.search(line)]
    assert not bad, "\n".join(bad)


def test_no_host_name_of_a_package_registry() -> None:
    bad = [f"{name}:{number}: {host}" for name, number, line in text_lines() for host in REGISTRY_HOSTS if host in line]
    assert not bad, "\n".join(bad)


def test_a_suppression_carries_its_reason() -> None:
    bad = [
        f"{name}:{number}: {line.strip()}"
        for name, number, line in text_lines()
        if name.endswith((".py", ".pyx", ".pyi"))
        and (found := SUPPRESSION.search(line))
        and not found.group(1).strip(" #:-")
        and not name.startswith("tests/tidy/")
    ]
    assert not bad, "say why, after the code, on these lines:\n" + "\n".join(bad)


def test_every_folder_of_tests_has_tests() -> None:
    tests = [relative(path) for path in files() if re.match(r"tests/\w+/", relative(path))]
    tested = {name.split("/")[1] for name in tests if re.search(r"/test_\w+\.py$", name)}
    assert {name.split("/")[1] for name in tests} == {*tested, "support", "mutation"}


def test_the_changelog_has_a_place_for_the_next_change() -> None:
    assert "## Unreleased" in lines(ROOT / "CHANGELOG.md")


def test_ci_and_make_are_there() -> None:
    ci = ROOT / ".ci" / "run"
    assert ci.stat().st_mode & 0o111, ".ci/run must be executable"
    targets = {line.split(":")[0] for line in lines(ROOT / "Makefile") if re.match(r"[a-z][\w-]*:", line)}
    assert {"setup", "demo", "test", "check", "bench"} <= targets
