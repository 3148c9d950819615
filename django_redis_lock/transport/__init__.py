"""One server: connections, clients, the Lua scripts, and how waiters hear of their turn."""
