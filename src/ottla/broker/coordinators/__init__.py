"""The common part of the group and transaction coordinators: each is a state machine on the partitions of an internal
topic that this broker leads (ADR 10, ADR 12).

    led_shards          the partitions of the topic that are led here, and a way to ask their coordinators
    led_shard           one of them while it is led: load, take steps, append, release replies
    loading             replays a log into a machine
    internal_topic      creates the topic
    alone               reports log failures where there is no cluster
"""
