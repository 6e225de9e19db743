"""`python -m steadyrl` is the command line."""

from steadyrl.cli.main import main

main()
