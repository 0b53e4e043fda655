"""Writes the pages of docs/ that are generated from the code: protocol, permissions, configuration, metrics, layers,
broken variants."""

from __future__ import annotations

import sys
from pathlib import Path

from ottla.broker.api.authorization_table import render_table as render_authorization
from ottla.broker.api.registry import render_protocol_table
from ottla.broker.metrics.docs import render as render_metrics
from ottla.protocol.model.config_docs import render as render_configuration

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.simulation.broken.table import render as render_broken_variants  # noqa: E402 the line above finds it
from tests.tidy.layers import render as render_layers  # noqa: E402 the line above finds it


def main() -> None:
    pages = {
        "docs/reference/protocol.md": render_protocol_table(),
        "docs/reference/authorization.md": render_authorization(),
        "docs/reference/configuration.md": render_configuration(),
        "docs/reference/metrics.md": render_metrics(),
        "docs/internals/layers.md": render_layers(),
        "docs/internals/simulation.md": render_broken_variants(),
    }
    for name, text in pages.items():
        (ROOT / name).write_text(text, encoding="utf-8")
        print(f"wrote {name}")


if __name__ == "__main__":
    main()
