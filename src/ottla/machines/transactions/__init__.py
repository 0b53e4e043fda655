"""Transactions (ADR 12), all pure: the coordinator of one partition of `__transaction_state`, and the transactions that
one partition of any topic contains.

coordinator                             requests in; records, replies and effects out
shard, timers                           the coordinator's state and its current step; deadlines
requests, replies, effects, config      what clients ask, the replies, actions outside, and settings
records, encoding, fields               what the log holds, in Kafka's own format
identity                                who a producer is: current, retrying, or fenced
init_producer, participation, ending    InitProducerId; AddPartitionsToTxn, AddOffsetsToTxn; EndTxn, aborts
markers                                 the second phase: a marker in each partition, then completion
listing                                 list, describe and expire transactional ids

partition_table                         the transactions of one partition: open ones, markers, the last stable offset
partition_history                       undoes changes when a log is truncated
verification                            a produce asks the coordinator first (KIP-890)
aborted_index                           the aborted transactions that a read_committed consumer skips
partition_snapshot                      the table as bytes
"""
