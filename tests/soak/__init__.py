"""The soak: many callers on a few locks, faults of every kind, and a proof from their histories.

    python -m tests.soak --seconds 600

``driver`` runs it, ``nemesis`` breaks things, ``worker`` is one process of callers, each of which
writes a history, and ``checker`` reads the histories and says what must never have happened.
"""
