"""The parts of `scripts/bench messenger`: the same durable work done in three ways."""
