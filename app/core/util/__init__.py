"""Small helpers without domain knowledge: clock, ids, JSON, URLs, throttling, waiting. May import: nothing of app."""
