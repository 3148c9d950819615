"""Chaos: one fault at a time, on one layout of servers at a time, and a table of the outcomes.

python -m tests.chaos --seconds-each 60
"""
