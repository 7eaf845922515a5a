"""Permission: rules, the permission stage, the ask queue."""
