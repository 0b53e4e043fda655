"""Compaction of a log: of each key the last record stays.

plan.py        which segments, and whether it is worth it
cleaning.py    reads them, finds the last record of each key, writes what is left
decided.py     what became of the transactions
swap.py        puts a new segment in the place of old ones, whole or not at all
mark.py        up to where a log has been compacted
compaction.py  one compaction of one log, in slices
compactor.py   which log is next, one at a time
"""
