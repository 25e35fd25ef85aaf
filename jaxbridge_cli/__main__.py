"""`python -m jaxbridge_cli` is the command `jaxbridge`."""

from jaxbridge_cli import main

main()
