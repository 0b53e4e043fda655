"""Writes the pages of docs/ that follow from the code: the protocol and the configuration."""

from __future__ import annotations

from pathlib import Path

from ottla.handlers.registry import render_protocol_table
from ottla.model.config_docs import render as render_configuration

DOCS = Path(__file__).resolve().parents[1] / "docs"


def main() -> None:
    for name, text in (("protocol.md", render_protocol_table()), ("configuration.md", render_configuration())):
        (DOCS / name).write_text(text, encoding="utf-8")
        print(f"wrote docs/{name}")


if __name__ == "__main__":
    main()
