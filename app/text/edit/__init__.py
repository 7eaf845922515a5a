"""Edit engines: search/replace, unified diff, whole file."""
