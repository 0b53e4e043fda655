"""The group coordinator, one for each partition of `__consumer_offsets` (ADR 10). All of it is pure.

coordinator                         requests in, records and answers out
shard, timers                       what it holds, and the step that it takes; deadlines
requests, replies, config           what is asked, answered and configured
records, encoding, fields           what the log holds, in Kafka's own format
consumer_encoding                   the same for the consumer protocol's records
tables, offset_table                what the records say: all that survives a failover
offset_requests                     commit, fetch, delete, expiry of offsets
classic_group, classic_rebalance    groups of the classic protocol, from one generation to the next
classic_join, classic_membership    its requests
consumer_protocol                   subscriptions and assignments inside of its messages
consumer_rules                      what a group of the consumer protocol (KIP-848) allows
migration                           groups that change their protocol
listing                             list, describe and delete groups
"""
