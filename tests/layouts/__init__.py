"""The contract on every layout of servers; kept apart, for it takes many servers: make layouts."""
