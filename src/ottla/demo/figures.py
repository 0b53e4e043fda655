"""The figures and the verdict of the siege as text, for the terminal and the page."""

from __future__ import annotations

from ottla.demo.crash_scenario import VALUE_BYTES
from ottla.demo.results import CrashResults


def figures_of(story: CrashResults) -> list[tuple[str, str]]:
    """Returns names and values of the figures, in the order in which they are shown."""
    rows = [
        ("written and acknowledged", _rate(story.records, story.write_s)),
        ("acknowledged before the kill of the leader", f"{story.acknowledged_before_kill:,}"),
        ("from the kill to new leaders", f"{story.new_leaders_s * 1000:,.0f} ms"),
    ]
    waits = sorted(story.next_write_s.values())
    if waits:
        name = f"to the next acknowledged write, {len(waits)} partition(s)"
        rows.append((name, f"{waits[0] * 1000:,.0f} to {waits[-1] * 1000:,.0f} ms"))
    return [
        *rows,
        ("from its restart to in sync again", f"{story.in_sync_s:,.1f} s"),
        ("all three killed: from restart to serving", f"{story.outage_s:,.1f} s"),
        ("read back", _rate(story.findings.read, story.read_s)),
    ]


def proof_of(story: CrashResults) -> list[tuple[str, str]]:
    """Returns the counts of the comparison between acknowledged and found records."""
    names = ("acknowledged", "read", "missing", "doubled", "reordered", "misplaced")
    return [(name, f"{getattr(story.findings, name):,}") for name in names]


def verdict_of(story: CrashResults) -> tuple[bool, str]:
    """Returns whether the demo proved its claim, and a sentence."""
    if story.proven:
        return True, "Every acknowledged record is there, once and in order."
    if story.findings.ok:
        return False, "The kill did not happen during the writes, so the demo proves nothing; use more records."
    return False, "The proof failed: this is a bug in Ottla."


def _rate(records: int, seconds: float) -> str:
    per_second = records / seconds if seconds else 0.0
    return f"{per_second:,.0f} records/s, {per_second * VALUE_BYTES / 1e6:,.1f} MB/s"
