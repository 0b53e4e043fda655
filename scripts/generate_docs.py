"""Writes the generated pages of docs/: the protocol, the configuration and the metrics."""

from __future__ import annotations

from pathlib import Path

from ottla.handlers.registry import render_protocol_table
from ottla.metrics.docs import render as render_metrics
from ottla.model.config_docs import render as render_configuration

DOCS = Path(__file__).resolve().parents[1] / "docs"


def main() -> None:
    pages = {
        "protocol.md": render_protocol_table(),
        "configuration.md": render_configuration(),
        "metrics.md": render_metrics(),
    }
    for name, text in pages.items():
        (DOCS / name).write_text(text, encoding="utf-8")
        print(f"wrote docs/{name}")


if __name__ == "__main__":
    main()
