"""A Redis Cluster: its topology, the clients of its nodes, and the listener for its waiters."""
