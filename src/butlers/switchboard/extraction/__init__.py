"""What messages tell about people: taken out, weighed, recorded or kept for a person to decide."""
