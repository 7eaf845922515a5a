"""Sessions and what they own: terminals and REPL kernels."""
