"""Keeps kio from importing hypothesis. Import this module before anything of kio.

kio builds strategies for property tests wherever it finds hypothesis, which is installed where Ottla is developed. They
would cost every process that speaks the protocol 9 MB and half a second for nothing. An installed Ottla has no
hypothesis.
"""

import sys

_is_refused = sys.modules.setdefault("hypothesis", None) is None  # type: ignore[arg-type]  # None makes the import fail

import kio.static.primitive  # noqa: E402, F401 - where it looks for hypothesis

if _is_refused:
    del sys.modules["hypothesis"]
