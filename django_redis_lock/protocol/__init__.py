"""The lock protocol: what servers are asked, how replies are read, and how waiters sleep.

It opens no connection. Its functions are generators of steps; ``drivers`` carry these out.
"""
