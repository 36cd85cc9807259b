"""Who may write in: a policy per channel, what became of the others, and how a stranger is let in (decision 0083)."""
