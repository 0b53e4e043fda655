"""The demo that `make demo` runs.

Three brokers take a million records, the leader is killed in mid-stream, and nothing is lost. Then a table is restored
to the moment before a bad delete.
"""
