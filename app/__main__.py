"""`python -m app` is the `toolcrib` command."""

from app.cli.main import main

main()
