"""Pages that follow from the code are as the code is, and links between pages lead somewhere."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from ottla.handlers.registry import render_protocol_table
from ottla.metrics.docs import render as render_metrics
from ottla.model.config_docs import render as render_configuration
from tests.tidy.tree import ROOT, files, relative

GENERATED = {
    "docs/reference/protocol.md": render_protocol_table,
    "docs/reference/configuration.md": render_configuration,
    "docs/reference/metrics.md": render_metrics,
}
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
NAMED_TEST = re.compile(r"\btest_\w+\b(?![*\w])")
NAMED_FILE = re.compile(r"\b(?:tests|src|scripts|benchmarks|deploy)/[\w./-]*\w\b(?![*\w])")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("name", GENERATED)
def test_generated_pages_are_fresh(name: str) -> None:
    render: Callable[[], str] = GENERATED[name]
    assert (ROOT / name).read_text(encoding="utf-8") == render(), "run 'make docs'"


@pytest.mark.parametrize("page", [path for path in files() if path.suffix == ".md"], ids=relative)
def test_links_lead_somewhere(page: Path) -> None:
    targets = [target for target in LINK.findall(page.read_text(encoding="utf-8")) if "://" not in target]
    broken = [target for target in targets if not (page.parent / target).exists()]
    assert not broken


def test_what_pages_name_is_there() -> None:
    """A guarantee that names a test which nobody has is none."""
    sources = "".join(path.read_text(encoding="utf-8") for path in files() if relative(path).startswith("tests/"))
    there = set(re.findall(r"def (test_\w+)", sources)) | {path.stem for path in files()}
    for page in (path for path in files() if path.suffix == ".md" and path.name != "CHANGELOG.md"):
        text = FENCED.sub("", page.read_text(encoding="utf-8"))
        assert set(NAMED_TEST.findall(text)) <= there, relative(page)
        gone = {name for name in NAMED_FILE.findall(text) if not (ROOT / name).exists()}
        assert not gone, relative(page)


FOR_DEVELOPERS = ("docs/internals/guarantee-tests.md", "docs/internals/simulation.md", "docs/internals/faults.md", "docs/adr/")


def test_tables_for_users_name_no_tests() -> None:
    """docs/internals/guarantee-tests.md is the place for them."""
    for page in (path for path in files() if path.suffix == ".md" and not relative(path).startswith(FOR_DEVELOPERS)):
        rows = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
        assert [row for row in rows if NAMED_TEST.search(row)] == [], relative(page)


def test_every_decision_is_listed() -> None:
    pages = {path.name for path in files() if relative(path).startswith("docs/adr/0")}
    listed = set(LINK.findall((ROOT / "docs" / "adr" / "README.md").read_text(encoding="utf-8")))
    assert pages == listed
