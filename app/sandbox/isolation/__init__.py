"""Isolation of a process: bubblewrap, Landlock, seccomp, privileges."""
