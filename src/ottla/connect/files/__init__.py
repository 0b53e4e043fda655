"""Topics into files, on a disk or an object store."""
