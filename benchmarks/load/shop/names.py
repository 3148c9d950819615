"""Names that the shop shares with the load run, which does without Django."""

POSTGRESQL, SQLITE = "PostgreSQL", "SQLite"

SOLD, SOLD_OUT, UNPAID, REFUSED = 201, 410, 409, 503
"""The answers: sold; sold out; sold out after the payment, which is returned; the wait ran out."""
