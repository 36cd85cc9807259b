"""The ways that `benchmarks.courier` compares: each file starts one server and speaks to it with its usual client."""
