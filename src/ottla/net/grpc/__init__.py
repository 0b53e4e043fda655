"""A gRPC client and server for asyncio, on HTTP/2 by `h2`. Calls are callbacks, with their own flow control."""
