"""`python -m app` is the `toolcrib` command."""

from app.cli import main

main()
