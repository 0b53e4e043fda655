"""`ottla log`: the files of a log."""
