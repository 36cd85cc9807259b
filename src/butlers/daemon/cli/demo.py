def demo() -> int:
    """The tour."""
    return 0
