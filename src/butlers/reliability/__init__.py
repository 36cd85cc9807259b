"""Mechanisms that every system shares, each written once.

All of it is plain, synchronous and pure: time, randomness and identifiers come in as arguments, a decision comes
out as a value, and the caller acts on it and stores it.

    retry            when to try again, or why not
    circuit_breaker  whether a target may be tried at all
    token_bucket     whether there is budget, in one bucket or in several at once
    idempotency      when two requests are the same request, and what the second one gets
    error_budget     how strictly a target is used while its failures spend the budget
    dead_letter      when work is set aside, and when it may run again
    fair_queue       what runs next

Import from the modules; nothing is re-exported here.
"""
