"""In-process and MCP over HTTP; the Courier stream comes with the Courier."""
