"""Consumer groups on this broker: the coordinators of the partitions of `__consumer_offsets` that it leads (ADR 10).

groups              what handlers ask: `broker.groups`
led_shard           one partition while it is led: load, take steps, append, let answers go
loading, batches    the log into a machine, and a step's records into the log
topic_news          what topics there are, told to the coordinators now and then instead of at each change
topic_patterns      regular expressions over the names of topics
offsets_topic       `__consumer_offsets`: how it is created
settings            the broker's configuration, as the machines take it
alone               failures of logs, where there is no cluster to hear of them
"""
