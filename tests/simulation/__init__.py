"""A deterministic simulation of the lock protocol: the package's own code on a virtual clock.

``docs/contributing/simulation.md`` says what is checked, and how. From the ground up:

``threads``, ``lua``, ``server``
    Virtual threads and time, and a server that runs the real scripts.
``network``, ``clients``, ``loops``, ``slots``, ``product``
    What lies between the two, and how the package is put there.
``world``
    Processes, and the scheduler that chooses what happens next.
``ledger``, ``promises``
    Who asks for which lock, and what has to hold after every step.
``actors``, ``faults``, ``layouts``
    What processes do, what happens to them and to servers, and on which backends.
``schedules``, ``campaign``, ``interleavings``, ``mutants``
    One schedule, and those that failed once; many; all orders at small scope; broken copies.
"""
