"""Messenger's operational tools (seed 001 section 5.1): what was sent, what was set aside, how the plane is, and why.

    tracking      status, search, attempts, trace; counts, rates, latencies
    dead_letters  list, inspect, discard, quarantine; replay, settle, validate, dry run
    health        circuits, limits, queue
    why           the story of one delivery in plain words
    recipients    who is not written to
    records       what the tools read

They read the same rows the worker writes and keep nothing of their own. Whatever changes something may be called by
the operator, and by Switchboard on a person's behalf.
"""
