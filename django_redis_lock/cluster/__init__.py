"""What a Redis Cluster takes: its topology, calls that follow it, and grants from many nodes."""
