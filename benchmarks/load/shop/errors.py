"""Why an order is not taken."""


class RefusedError(Exception):
    """The wait ran out."""


class SoldOutError(Exception):
    """There was no unit left when the stock was read."""


class DeclinedError(Exception):
    """The payment was declined."""


class PaidForNothingError(Exception):
    """There was no unit left when the stock was written; the payment must be returned."""
