"""What operators do to locks from outside: who is alive, who may release, and the log of it."""
