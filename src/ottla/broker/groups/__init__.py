"""Consumer groups on this broker: the coordinators of the partitions of `__consumer_offsets` that it leads (ADR 10).

    groups              the interface for handlers: `broker.groups`
    led_shard, batches  one partition while it is led, and the encoding of a step's records as a batch
    topic_news          notifies coordinators of topic changes, in intervals instead of at each change
    topic_patterns      regular expressions over topic names
    settings            translates the broker's configuration for the machines; plans `__consumer_offsets`

Code shared with other coordinators is in `coordinators`.
"""
