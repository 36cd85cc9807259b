"""Admission: whether a delivery may be sent now, and its first row.

rules      the rules: throttle, in flight, mail loop, budgets, fair share, circuit. Pure
state      what the rules look at, read in one statement, and the decision by it. Pure
slots      which admitted deliveries a worker starts at once
admission  the transaction: lock, read, decide, write, commit; many intents at once
"""
