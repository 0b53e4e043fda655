"""gRPC over HTTP/2 on an asyncio event loop, both sides: frames by `h2`, calls as callbacks, flow control by hand."""
