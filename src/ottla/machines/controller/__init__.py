"""The controller: what the cluster's state is, and what of it is to be written next (ADR 7). All of it is pure.

state, keys, encoding       what the store holds, as values
image, touched              a broker's picture of it, kept up by a watch, and what a change touches
rules, election             who leads and who is in sync
plan, planner, preferred    what the controller writes
isr                         what a leader writes
broker_requests             what a broker writes of itself
topic_requests, assignment  what whichever broker is asked writes
partition_requests          what the controller writes because somebody asks
writes                      transactions, and how changes are packed into few of them
"""
