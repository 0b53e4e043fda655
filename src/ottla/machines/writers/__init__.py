"""Writers of the append stream: who may append, where a writer goes on after a cut, what of it is in the log."""
