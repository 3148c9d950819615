"""Names that the shop shares with the load run, which does without Django."""

POSTGRESQL, SQLITE = "PostgreSQL", "SQLite"

SOLD, SOLD_OUT, UNPAID, DECLINED, REFUSED = 201, 410, 409, 402, 503
"""The answers: sold; sold out; sold out after the payment, which is returned; the payment was
declined; the wait ran out."""
