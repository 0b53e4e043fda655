"""Generated pages are up to date, and the links, anchors, tests, files and safety rules that pages name exist."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from ottla.broker.api.authorization_table import render_table as render_authorization
from ottla.broker.api.registry import render_protocol_table
from ottla.broker.metrics.docs import render as render_metrics
from ottla.protocol.model.config_docs import render as render_configuration
from tests.simulation.broken.__main__ import VARIANTS
from tests.simulation.broken.table import render as render_broken_variants
from tests.tidy.layers import render as render_layers
from tests.tidy.tree import ROOT, files, relative

GENERATED = {
    "docs/reference/protocol.md": render_protocol_table,
    "docs/reference/authorization.md": render_authorization,
    "docs/reference/configuration.md": render_configuration,
    "docs/reference/metrics.md": render_metrics,
    "docs/internals/layers.md": render_layers,
    "docs/internals/simulation.md": render_broken_variants,
}
PAGES = [path for path in files() if path.suffix == ".md"]
SAFETY_PAGE = ROOT / "docs" / "internals" / "safety.md"
FENCED = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"^    .*$", re.MULTILINE)
CODE = re.compile(r"`[^`\n]*`")
HEADING = re.compile(r"^(#{1,6}) (.+?)\s*$", re.MULTILINE)
NAMED_TEST = re.compile(r"\btest_\w+\b(?![*\w])")
NAMED_FILE = re.compile(r"\b(?:tests|src|scripts|benchmarks|deploy|examples)/[\w./-]*\w\b(?![*\w])")
NAMED_PAGE = re.compile(r"\bdocs/[\w./-]+\.md\b")
LINK = re.compile(r"\]\(([^)\s]+)\)")
SAFETY = re.compile(r"\(safety:[\s#]+([a-z][a-z,\s#-]*)\)")
NUMBERED = re.compile(r"\b(?:SAFETY|DESIGN|DATAPATH|DATAPLANE)\s+\d")
PROSE_LINE_MAX = 100


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def targets(page: Path) -> Iterator[tuple[str, str]]:
    """Paths and anchors of the page's links, except external ones. A path is empty for the page itself."""
    for target in LINK.findall(CODE.sub("", FENCED.sub("", text_of(page)))):
        if "://" not in target:
            path, _, anchor = target.partition("#")
            yield path, anchor


@cache
def anchors(page: Path) -> frozenset[str]:
    """Anchors of the page's headings, as MkDocs and code hosts generate them."""
    found: set[str] = set()
    for _, title in HEADING.findall(FENCED.sub("", text_of(page))):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).replace("`", "")
        slug = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())
        numbers = (f"{slug}_{number}" for number in range(1, 100))
        found.add(slug if slug not in found else next(name for name in numbers if name not in found))
    return frozenset(found)


@pytest.mark.parametrize("name", GENERATED)
def test_generated_pages_are_fresh(name: str) -> None:
    render: Callable[[], str] = GENERATED[name]
    assert text_of(ROOT / name) == render(), "run 'make docs'"


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for path, anchor in targets(page):
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            broken.append(f"{path}: no such file")
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            broken.append(f"{path}#{anchor}: no such heading")
    assert not broken, "\n".join(broken)


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r"[\w./-]+\.md", text_of(ROOT / "mkdocs.yml")))
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in PAGES if relative(path).startswith("docs/")}
    assert listed == pages


def test_pages_name_only_tests_and_files_that_exist() -> None:
    """A guarantee whose named test does not exist is not tested."""
    sources = "".join(text_of(path) for path in files() if re.match(r"tests/.*\.py$", relative(path)))
    there = set(re.findall(r"def (test_\w+)", sources)) | {path.stem for path in files()}
    for page in (path for path in PAGES if path.name != "CHANGELOG.md"):
        text = FENCED.sub("", text_of(page))
        assert set(NAMED_TEST.findall(text)) <= there, relative(page)
        gone = {name for name in NAMED_FILE.findall(text) if not (ROOT / name).exists()}
        assert not gone, relative(page)


def test_pages_that_the_code_names_exist() -> None:
    gone = [
        f"{relative(path)}: {name}"
        for path in files()
        if path.suffix in {".py", ".pyx", ".pyi", ".proto", ".yml", ".properties", ".service", ".md"}
        for name in NAMED_PAGE.findall(text_of(path))
        if not (ROOT / name).exists()
    ]
    assert not gone, "\n".join(gone)


FOR_DEVELOPERS = ("docs/internals/", "docs/adr/")


def test_tables_for_users_name_no_tests() -> None:
    """docs/internals/guarantee-tests.md is the place for them."""
    for page in (path for path in PAGES if not relative(path).startswith(FOR_DEVELOPERS)):
        rows = [line for line in text_of(page).splitlines() if line.startswith("|")]
        assert [row for row in rows if NAMED_TEST.search(row)] == [], relative(page)


def test_every_decision_is_listed() -> None:
    pages = {path.name for path in files() if relative(path).startswith("docs/adr/0")}
    assert pages == {path for path, _ in targets(ROOT / "docs" / "adr" / "README.md") if path[:1].isdigit()}


@pytest.mark.parametrize("page", [path for path in PAGES if relative(path) not in GENERATED], ids=relative)
def test_lines_of_prose_fit(page: Path) -> None:
    """Tables, code and longer single words cannot be wrapped."""
    long = [
        f"{relative(page)}: {line[:60]}..."
        for line in INDENTED.sub("", FENCED.sub("", text_of(page))).splitlines()
        if len(line) > PROSE_LINE_MAX and not line.lstrip().startswith("|") and " " in line.strip()[2:PROSE_LINE_MAX]
    ]
    assert not long, "\n".join(long)


# -- safety rules ----------------------------------------------------------------------------------------------------


def referring() -> list[Path]:
    """The files that may refer to a rule, except this one, which has the patterns."""
    suffixes = {".py", ".pyx", ".pyi", ".md", ".proto", ".toml"}
    folders = ("src/", "tests/", "docs/", "examples/")
    found = [path for path in files() if path.suffix in suffixes and relative(path).startswith(folders)]
    return [path for path in found if path != Path(__file__).resolve()]


def rule_names() -> set[str]:
    return {title for level, title in HEADING.findall(text_of(SAFETY_PAGE)) if level == "###"}


def test_every_safety_rule_that_is_referred_to_exists() -> None:
    rules = rule_names()
    unknown = [
        f"{relative(path)}: {name!r}"
        for path in referring()
        for names in SAFETY.findall(text_of(path))
        for name in (part.strip(" #\n") for part in names.split(","))
        if name not in rules
    ]
    assert not unknown, "docs/internals/safety.md has no heading for:\n" + "\n".join(unknown)


def test_safety_rules_are_referred_to_by_name() -> None:
    numbered = [
        f"{relative(path)}:{number}: {line.strip()}"
        for path in referring()
        for number, line in enumerate(text_of(path).splitlines(), 1)
        if NUMBERED.search(line)
    ]
    assert not numbered, "write (safety: NAME), with a name of docs/internals/safety.md:\n" + "\n".join(numbered)


def test_safety_rules_name_their_broken_variants() -> None:
    sections = re.split(r"^### (.+)$", text_of(SAFETY_PAGE), flags=re.MULTILINE)
    texts = {name: " ".join(text.split()) for name, text in zip(sections[1::2], sections[2::2], strict=True)}
    missing = [
        f"{rule}: {variant.name}"
        for variant in VARIANTS
        for rule in variant.rule.split(", ")
        if re.fullmatch(r"[a-z-]+", rule) and f'"{variant.name}"' not in texts.get(rule, "")
    ]
    assert not missing, "docs/internals/safety.md does not name:\n" + "\n".join(missing)


def test_safety_rules_name_files_that_exist() -> None:
    """That page names test files relative to tests/; the file after a test contains it."""
    text = " ".join(text_of(SAFETY_PAGE).split())
    folder = ROOT / "tests"
    wrong = [name for name in re.findall(r"`([\w/]+/test_\w+\.py)`", text) if not (folder / name).exists()]
    for tests, name in re.findall(r"((?:`test_\w+`(?:, | and | )?)+)\(`([\w/]+\.py)`\)", text):
        source = (folder / name).read_text(encoding="utf-8") if (folder / name).exists() else ""
        wrong += [f"{name}: {test}" for test in re.findall(r"`(test_\w+)`", tests) if f"def {test}(" not in source]
    assert not wrong, "\n".join(wrong)
