"""A broker as a member of a cluster: membership, the cluster's state, and the controller's work if this broker is
it."""
