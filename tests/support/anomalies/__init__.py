"""Finds transactional anomalies in histories of clients, in the style of Elle. Pure, and without code of the broker.

history.py  what clients did and saw: transactions that append unique values to logs and read them
checker.py  the checks of single values, transactions and reads
order.py    the order that the observations imply, as a graph whose cycles are contradictions
cycles.py   a short cycle of a graph

Elle infers dependencies of transactions from lists to which unique values are appended. A partition is such a list,
and its offsets give the order of appends without inference. A committed value that a transaction reads makes it depend
on the transaction that appended the value (wr); two appends to one partition are ordered by their offsets (ww).

Kafka's transactions are atomic, but they are not isolated from one another. Appends of concurrent transactions
interleave, so two transactions may precede each other in two partitions (a write cycle, G0), and the end that a
read_committed reader sees may lie between two records of a committed transaction. With `interleaved`, the checker
accepts both where they are possible and reports all else. It then orders single appends, reads and commits instead of
whole transactions, also by real time: a cycle in that order has no explanation.
"""
