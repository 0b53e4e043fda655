"""Consume-transform-produce in a chain of three topics, each worker a process of its own, while workers and brokers go.

checker.py   the anomalies of a history; pure
history.py   what workers record, and how it is read back
worker.py    a worker with librdkafka; own_worker.py: with ottla.client; the Java one is ChainWorker.java of the
             conformance tests
reading.py   views of a topic: all the while, and at the end; where it ends, for readers of both kinds
cluster.py   three brokers that are killed, paused and given other things to lead
chain.py     the chain under test: its topics, its workers, and what can be done to them
schedules.py which faults in which order; __main__.py: for as long as one likes
"""
