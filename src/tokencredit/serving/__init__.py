"""Engines behind an OpenAI-compatible address: `tokencredit serve`, and the engine that asks such a server."""
