"""The OpenAI Chat Completions format, shared by every provider that speaks it."""
