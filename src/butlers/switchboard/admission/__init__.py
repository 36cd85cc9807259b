"""What the door does when more comes in than goes out (seed 003, "Backpressure and Admission Control").

shares.py       whether a channel still has a place: a guaranteed share for each, the rest for whoever comes
decision.py     accepted | deferred | shed | rejected, by [admission] of butler.toml
occupancy.py    how much waits, by channel: looked up now and then, counted on in between
admission.py    the three together, as the ingress asks them
"""
