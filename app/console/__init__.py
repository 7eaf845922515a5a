"""Floor 4, the window: the web page, mounted by main."""
