"""What failed for good, and what people do about requests."""
