"""One message through each door, for the inner loop."""
