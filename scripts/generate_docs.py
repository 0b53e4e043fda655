"""Writes the pages of docs/ that are generated from the code: protocol, configuration, metrics, broken variants."""

from __future__ import annotations

from pathlib import Path

from ottla.handlers.registry import render_protocol_table
from ottla.metrics.docs import render as render_metrics
from ottla.model.config_docs import render as render_configuration

DOCS = Path(__file__).resolve().parents[1] / "docs"


def main() -> None:
    pages = {
        "reference/protocol.md": render_protocol_table(),
        "reference/configuration.md": render_configuration(),
        "reference/metrics.md": render_metrics(),
    }
    for name, text in pages.items():
        (DOCS / name).write_text(text, encoding="utf-8")
        print(f"wrote docs/{name}")


if __name__ == "__main__":
    main()
