"""Race-free access to workspace files."""
