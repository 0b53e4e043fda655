"""Consumer groups on this broker: the coordinators of the partitions of `__consumer_offsets` that it leads (ADR 10).

groups              what handlers ask: `broker.groups`
led_shard, batches  one partition while it is led, and a step's records as a batch
topic_news          what topics there are, told to the coordinators now and then instead of at each change
topic_patterns      regular expressions over the names of topics
settings            the broker's configuration, as the machines take it; how `__consumer_offsets` is made

What is not of groups alone is in `coordinators`.
"""
