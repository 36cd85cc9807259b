"""Credit-based streams for agents: `core` holds the queues, `gateway` serves them by HTTP and WebSocket."""
