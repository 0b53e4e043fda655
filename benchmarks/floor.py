"""The floor: a bare socket reader that writes to a file. The code is in `ottla.bench.floor`.

python benchmarks/floor.py [--seconds 2] [--dir DIR] [--server]
"""

from __future__ import annotations

from ottla.bench.floor import main

if __name__ == "__main__":
    main()
