"""Redis and Valkey servers as backends use them: one server, or a cluster."""
