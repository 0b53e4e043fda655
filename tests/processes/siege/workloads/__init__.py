"""Workloads that run in a siege beside plain writers and readers. Each records a history, and each has a check.

transacting.py, transactor.py  processes with transactions that append to several partitions and read from others
transactions.py                the history of these and of exactly-once workers, and its check (tests.support.anomalies)
exactly_once.py                workers that consume, transform and produce (tests.processes.transactions)
wal_clients.py, wal.py         a process with clients of write-ahead logs; their history and its check
members.py                     consumer groups of both protocols (tests.processes.groups), and their check
workloads.py                   all of them: start, restarts and deaths while the siege lasts, and the end
"""
