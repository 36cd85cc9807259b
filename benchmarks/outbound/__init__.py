"""What sending costs: the queues here, the rest beside."""
