"""Talks to a server: connections, clients, the Lua scripts, and notifications of waiters."""
