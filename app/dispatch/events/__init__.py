"""Events: the hub, subscriptions, live output."""
