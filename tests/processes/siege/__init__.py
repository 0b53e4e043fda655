"""A siege of a real cluster: clients record a history, a nemesis injects faults, a checker finds anomalies.

history.py    the lines that clients record, and their parser
checker.py    finds the anomalies of a history; pure
findings.py   the findings of a check
values.py     the written values: each contains its source and number, which determine the rest
writer.py, reader.py, processes.py      clients as processes; senders.py, receivers.py: the libraries behind them
network.py, disks.py, store.py, node.py, cluster.py      brokers in network namespaces, on separate disks
faults.py, nemesis.py       the faults and their order
campaign.py   a run from start to summary; summary.py prints it
"""
