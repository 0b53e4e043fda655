"""What `make demo` shows: a million records, a kill -9 in the middle, and the proof that nothing was lost."""
