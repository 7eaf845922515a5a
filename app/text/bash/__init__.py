"""Reading of bash command lines: what they run and what they need."""
