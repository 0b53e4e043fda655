"""Transactions on this broker: the coordinators of the partitions of `__transaction_state` that it leads (ADR 12).

    transactions        the interface for handlers: `broker.transactions`
    led_shard           one partition while it is led: steps, and their effects once they are committed
    marker_sending      sends markers to the leaders of a transaction's partitions
    verification        asks a coordinator, on this or another broker, on behalf of a produce
    peers               connections to other brokers
    settings            translates the broker's configuration for the machines; plans `__transaction_state`

Code shared with groups is in `coordinators`.
"""
