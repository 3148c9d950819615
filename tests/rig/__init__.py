"""The rig under soak and chaos: callers in processes, faults, their history, and its checker."""
