"""What the shop and those who load it both have to know, apart from what needs Django."""

POSTGRESQL, SQLITE = "PostgreSQL", "SQLite"

SOLD, SOLD_OUT, UNPAID, REFUSED = 201, 410, 409, 503
"""The answers: sold; sold out; sold out after the payment, which goes back; the wait ran out."""
