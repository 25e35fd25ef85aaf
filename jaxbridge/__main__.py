"""`python -m jaxbridge` is the command `jaxbridge`."""

from jaxbridge.cli import main

main()
