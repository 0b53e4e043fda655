"""What idle partitions and idle connections cost: the same measurements with more and more of them."""
