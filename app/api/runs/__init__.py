"""Routes for runs: a model's message in, what to append out."""
