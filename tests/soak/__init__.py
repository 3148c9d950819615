"""The soak: all faults at once, at random, on one server; and a proof from the history.

python -m tests.soak --seconds 600
"""
