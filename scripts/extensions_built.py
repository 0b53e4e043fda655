"""Says which extensions were compiled. One that was not is slower, not wrong: its Python twin takes over."""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> int:
    sources = sorted(Path("src").glob("ottla/**/*.pyx"))
    missing = [source for source in sources if not any(source.parent.glob(f"{source.stem}.*.so"))]
    for source in sources:
        print(f"  {'PYTHON TWIN' if source in missing else 'compiled':11}  {source}")
    if missing:
        print("Some extensions did not compile (is a C compiler installed?): Ottla works, but slower.", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
