"""Chaos: one fault at a time, on one layout of servers at a time, and what callers make of it.

    python -m tests.chaos --seconds-each 60

``layouts`` lists what locks can be kept on, ``faults`` what can go wrong, ``run`` puts callers on
one of the first, does one of the second to it and has the history judged by the soak's checker,
and ``row`` says what came of it in a line of the table.
"""
