"""Style rules as tests: sizes, names, imports, and no traces of one machine in the repository."""
