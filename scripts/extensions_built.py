"""Prints which extensions are compiled. Without one, Ottla uses its Python twin, which is slower but correct."""

from __future__ import annotations

import sys

from ottla.extensions import extension_names, missing_extensions, missing_sentence


def main() -> int:
    missing = missing_extensions()
    for name in extension_names():
        print(f"  {'PYTHON TWIN' if name in missing else 'compiled':11}  {name}")
    sentence = missing_sentence()
    if sentence is not None:
        print(sentence, file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
