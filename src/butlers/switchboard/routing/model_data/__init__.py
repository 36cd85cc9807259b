"""Package data: the trained model, made by benchmarks/routing/train.py."""
