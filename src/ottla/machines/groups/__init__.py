"""The group coordinator, one for each partition of `__consumer_offsets` (ADR 10). All of it is pure.

coordinator                             requests in, records and answers out
shard, timers                           what it holds, and the step that it takes; deadlines
requests, replies, config               what is asked, answered and configured
records, encoding, fields               what the log holds, in Kafka's own format
tables, offset_table                    what the records say: all that survives a failover
offset_requests                         commit, fetch, delete, expiry of offsets
listing, placement                      list, describe and delete groups; whose coordinator they have

classic_group, classic_rebalance        groups of the classic protocol, from one generation to the next
classic_join, classic_membership        its requests
consumer_protocol                       subscriptions and assignments inside of its messages

consumer_heartbeat                      the consumer protocol (KIP-848): its one request
consumer_members, consumer_reconcile    members, epochs, targets, and the way of a member to its target
consumer_rules, assignors               what such a group allows, and who gets which partitions
consumer_encoding                       its records
migration, classic_guests               groups that change their protocol; classic members of a consumer group
"""
