"""Hooks of the documentation site (mkdocs.yml): diagrams become SVG, links out of docs/ lead to the repository's files.

Diagrams are Mermaid source in the pages, which code hosts render by themselves. The site has them as SVG, drawn when it
is built, so that a page needs neither a script nor a network.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import merman

ROOT = Path(__file__).resolve().parents[1]
DIAGRAM = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[([^\]]+)\]\((\.\./[^)\s]+)\)")
_client = merman.Merman()


def on_page_markdown(markdown: str, page: object, **_: object) -> str:
    source = Path(page.file.abs_src_path)  # type: ignore[attr-defined]  # MkDocs' page, which is not typed here
    markdown = DIAGRAM.sub(lambda found: _draw(found[1]), markdown)
    return LINK.sub(lambda found: _inside(source, found), markdown)


def _draw(diagram: str) -> str:
    """The same id for the same diagram: styles of one SVG apply to a whole page."""
    name = "d" + hashlib.sha256(diagram.encode()).hexdigest()[:12]
    svg = _client.render_svg(diagram, f'{{"svg":{{"diagram_id":"{name}"}}}}')
    return f'<div class="diagram" style="background:#fff;padding:8px;overflow-x:auto">{svg}</div>'


def _inside(source: Path, found: re.Match[str]) -> str:
    """A link to a file outside of docs/ becomes the file's name: the site does not have the file."""
    target = (source.parent / found[2].partition("#")[0]).resolve()
    if target.is_relative_to(ROOT / "docs"):
        return found[0]
    if not target.exists():
        raise FileNotFoundError(f"{source}: {found[2]}")
    return f"{found[1]} (`{target.relative_to(ROOT)}`)"
