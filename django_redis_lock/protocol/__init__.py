"""The lock protocol without I/O: calls, leases, records, and the drivers that carry them out."""
