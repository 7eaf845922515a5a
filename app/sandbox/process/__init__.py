"""Starting, supervising and killing processes."""
