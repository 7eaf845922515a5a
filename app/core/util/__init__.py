"""Small pure helpers without domain knowledge: clock, ids, JSON, URLs, throttling. May import: nothing of app."""
