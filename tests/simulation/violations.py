"""What a simulated run reports when a promise does not hold."""

from __future__ import annotations


class Violation(AssertionError):  # noqa: N818 # not an error of the run: what it is there to find
    """Something that is promised does not hold. Its text begins with the name of what was checked."""

    def __init__(self, checker: str, text: str) -> None:
        super().__init__(f"{checker}: {text}")
        self.checker = checker
