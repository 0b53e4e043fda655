"""The report of a simulated run that violates a guarantee."""

from __future__ import annotations


class Violation(AssertionError):  # noqa: N818 # not an error of the run: what it is there to find
    """A violated guarantee. The text begins with the name of the check."""

    def __init__(self, checker: str, text: str) -> None:
        super().__init__(f"{checker}: {text}")
        self.checker = checker
