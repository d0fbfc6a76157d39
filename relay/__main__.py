"""`python -m relay` is the command line `outbox`."""

from relay.cli import main

main()
