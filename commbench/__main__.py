"""`python -m commbench` is the `commbench` command."""

from commbench.cli import main

main()
