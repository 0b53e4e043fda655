"""A broker as one of many: membership, the cluster's state, and the controller's work if it falls to this one."""
