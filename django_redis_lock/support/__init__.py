"""What every other part may use: argument checks, process identity, text and passwords."""
