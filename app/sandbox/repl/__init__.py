"""Programs of ours that run behind walls. Each is started by its path and knows nothing of the house."""
