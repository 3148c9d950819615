"""Measure what a server and a process carry: held locks, renewals, pairs and waiters."""
