"""Talks to a server: connections, clients, the Lua scripts, and how waiters learn of grants."""
