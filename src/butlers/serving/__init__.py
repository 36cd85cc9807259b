"""Our HTTP doors: uvicorn as a guest in our event loop (`server`), and what a stranger may hold of it (`limits`)."""
