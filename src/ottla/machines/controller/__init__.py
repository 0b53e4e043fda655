"""The controller: the state of the cluster, and the writes that are due next (ADR 7). All of it is pure.

state, keys, encoding       what the store holds, as values
image, touched              a broker's copy of the store, maintained by a watch, and what a change affects
rules, election             who leads and who is in sync
plan, planner, preferred    what the controller writes
isr                         what a leader writes
broker_requests             what a broker writes about itself
topic_requests, assignment  what the broker that receives a request writes
partition_requests          what the controller writes on request
writes                      transactions, and how changes are packed into few of them
"""
