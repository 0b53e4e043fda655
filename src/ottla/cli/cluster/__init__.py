"""`ottla cluster`: the state of a cluster, and moves of replicas."""
