"""What `benchmarks/outbound.py` measures."""
