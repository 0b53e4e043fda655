"""Log compaction: keeps the last record of each key.

plan.py        which segments to compact, and whether it is worth it
cleaning.py    reads them, finds the last record of each key, writes the remaining records
decided.py     the outcome of the transactions
swap.py        replaces old segments by a new one atomically
mark.py        how far a log has been compacted
compaction.py  one compaction of one log, in slices
compactor.py   chooses the next log, one at a time
"""
