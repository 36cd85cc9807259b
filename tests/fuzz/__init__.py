"""Input that nobody should send: whatever comes, the answer is an answer.

How many is `BUTLERS_FUZZ` (10,000 unless it says otherwise; 100,000 is the whole proof). Seeds are fixed, so a failure
comes again; its message names the number that makes the same input.
"""
