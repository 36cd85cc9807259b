"""The tour: a whole system in a temporary directory, driven through its public doors."""
