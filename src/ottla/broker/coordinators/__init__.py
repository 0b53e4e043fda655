"""What the coordinators of groups and of transactions have in common: each is a machine on the partitions of an
internal topic that this broker leads (ADR 10, ADR 12).

led_shards          the partitions of the topic that are led here, and a way to ask their coordinators
led_shard           one of them while it is led: load, take steps, append, let answers go
loading             the log into a machine
internal_topic      how the topic is created
alone               failures of logs, where there is no cluster to hear of them
"""
