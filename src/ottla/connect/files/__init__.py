"""Writes topics to files, on a disk or in an object store."""
