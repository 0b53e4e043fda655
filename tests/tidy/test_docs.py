"""Pages that follow from the code are as the code is, and links between pages lead somewhere."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from ottla.handlers.registry import render_protocol_table
from ottla.model.config_docs import render as render_configuration
from tests.tidy.tree import ROOT, files, relative

GENERATED = {"docs/protocol.md": render_protocol_table, "docs/configuration.md": render_configuration}
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


def test_every_decision_is_listed() -> None:
    pages = {path.name for path in files() if relative(path).startswith("docs/adr/0")}
    listed = set(LINK.findall((ROOT / "docs" / "adr" / "README.md").read_text(encoding="utf-8")))
    assert pages == listed
