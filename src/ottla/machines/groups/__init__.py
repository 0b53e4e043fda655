"""The group coordinator, one for each partition of `__consumer_offsets` (ADR 10). All of it is pure.

coordinator                             requests in, records and replies out
shard, timers                           the coordinator's state and its current step; deadlines
requests, replies, config               requests, replies and settings
records, encoding, fields               what the log holds, in Kafka's own format
tables, offset_table                    the state that the records define: all that survives a failover
offset_requests                         commit, fetch, delete and expire offsets
listing, placement                      list, describe and delete groups; which coordinator a group has

classic_group, classic_rebalance        groups of the classic protocol, from one generation to the next
classic_join, classic_membership        its requests
consumer_protocol                       subscriptions and assignments inside its messages

consumer_heartbeat                      the consumer protocol (KIP-848): its one request
consumer_members, consumer_reconcile    members, epochs, targets, and how a member reaches its target
consumer_rules, assignors               the rules of such a group, and the assignment of partitions
consumer_encoding                       its records
migration, classic_guests               groups that change their protocol; classic members of a consumer group
"""
