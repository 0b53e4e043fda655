"""`python -m ottla` is the command `ottla`."""

import sys

from ottla.cli import main

# A library that we use builds strategies for property tests wherever it finds hypothesis, which is where Ottla is
# developed: 9 MB and a quarter of a second of every process, for nothing. Where Ottla is installed there is none.
sys.modules.setdefault("hypothesis", None)  # type: ignore[arg-type] # None is how an import is refused

sys.exit(main())
