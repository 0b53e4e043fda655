"""Transactions on this broker: the coordinators of the partitions of `__transaction_state` that it leads (ADR 12).

transactions        what handlers ask: `broker.transactions`
led_shard           one partition while it is led: steps, and their effects when they are committed
marker_sending      markers to the leaders of a transaction's partitions
verification        what a produce asks a coordinator, here or at another broker
peers               connections to other brokers
settings            the broker's configuration, as the machines take it; how `__transaction_state` is made

What it shares with groups is in `coordinators`.
"""
