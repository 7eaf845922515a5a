"""Speed, measured as ratios within one run; nothing here asserts a wall-clock time. `python -m bench.run`."""
