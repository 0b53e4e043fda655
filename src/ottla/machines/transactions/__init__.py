"""Transactions (ADR 12), all of it pure: the coordinator of one partition of `__transaction_state`, and what one
partition of any topic knows of the transactions in it.

coordinator                             requests in, records, answers and effects out
shard, timers                           what it holds, and the step that it takes; deadlines
requests, replies, effects, config      what is asked, answered, done elsewhere, and configured
records, encoding, fields               what the log holds, in Kafka's own format
identity                                who a producer is: the current one, one that retries, or a fenced one
init_producer, participation, ending    InitProducerId; AddPartitionsToTxn, AddOffsetsToTxn; EndTxn, aborts
markers                                 the second phase: a marker in each partition, and then the end
listing                                 list, describe, and expire transactional ids

partition_table                         the transactions in one partition: open ones, markers, the last stable offset
partition_history                       how to go back when a log is truncated
verification                            a produce asks the coordinator first (KIP-890)
aborted_index                           what a read_committed consumer has to skip
partition_snapshot                      the table as bytes
"""
