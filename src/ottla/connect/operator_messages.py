"""Messages of a follower to the operator, beyond what `ottla connect status` shows."""

from __future__ import annotations

import sys
import time


def say(sentence: str) -> None:
    """Prints a sentence to stderr, which the process shares with its supervisor."""
    print(f"{time.strftime('%H:%M:%S')} {sentence}", file=sys.stderr, flush=True)
