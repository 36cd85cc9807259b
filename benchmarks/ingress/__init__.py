"""What `scripts/bench ingest` is made of."""
