"""What a connector that keeps a log tells the person in front of it, past what `ottla connect status` shows."""

from __future__ import annotations

import sys
import time


def say(sentence: str) -> None:
    """On stderr, which is the supervisor's own."""
    print(f"{time.strftime('%H:%M:%S')} {sentence}", file=sys.stderr, flush=True)
