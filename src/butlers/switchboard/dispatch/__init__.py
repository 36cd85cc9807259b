"""One decision, several butlers: the plan, its execution, and what is said of the results together."""
