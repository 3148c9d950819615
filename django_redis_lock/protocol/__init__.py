"""The lock protocol: generators of steps, which ``drivers`` carry out. It opens no connection."""
