"""Consume-transform-produce in a chain of three topics, each worker a process, while workers and brokers fail.

checker.py   finds the anomalies of a history; pure
history.py   the lines that workers record, and their parser
worker.py    a worker with librdkafka; own_worker.py: with ottla.client; the Java one is ChainWorker.java of the
             conformance tests
reading.py   views of a topic during the run and at the end; its log end and last stable offset
cluster.py   three brokers that are killed, paused and get other partitions to lead
chain.py     the chain under test: its topics, its workers, and operations on them
schedules.py the order of faults; __main__.py: runs of any length
"""
