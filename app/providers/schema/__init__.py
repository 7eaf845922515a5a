"""JSON Schema rewriting for what each provider accepts."""
