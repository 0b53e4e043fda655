"""A cluster of real processes under siege: clients record a history while a nemesis does its worst, a checker judges.

history.py    what clients record, and how it is read back
checker.py    the anomalies of a history; pure
findings.py   what a check found
values.py     what is written: each value says whose it is, and the rest follows from that
writers.py, readers.py      clients as processes of their own; *_clients.py: the libraries behind them
network.py, disks.py, store.py, node.py, cluster.py      brokers in network namespaces, on disks of their own
faults.py, nemesis.py       what is done to them, and in which order
campaign.py   a run from start to summary; summary.py prints it
"""
