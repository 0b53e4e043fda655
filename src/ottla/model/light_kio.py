"""Import this before anything of kio.

kio builds strategies for property tests wherever it finds hypothesis, which is where Ottla is developed: 9 MB and half
a second of every process that speaks the protocol, for nothing. Where Ottla is installed there is none.
"""

import sys

_is_refused = sys.modules.setdefault("hypothesis", None) is None  # type: ignore[arg-type] # None refuses an import

import kio.static.primitive  # noqa: E402, F401 - where it looks for hypothesis

if _is_refused:
    del sys.modules["hypothesis"]
