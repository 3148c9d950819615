"""Products with stock, orders, a view that sells and a task that imports."""
