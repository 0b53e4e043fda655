"""Rules of style as tests: sizes, names, imports, and nothing in the repository that belongs to one machine."""
