"""The server's side of SASL mechanisms, as pure state machines.

A machine gets the client's messages, one by one, and says what to send. The caller looks up the user's credential
between the first message and its reply, because it is in a store.
"""
