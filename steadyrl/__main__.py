"""`python -m steadyrl` is the command line."""

import sys

from steadyrl.backends.fsdp.torchrun import noted, place

if place().ranks > 1 and "train" in sys.argv[1:2]:
    noted()  # before anything is loaded: torchrun ends a rank when another has died, and this one is to say which

from steadyrl.cli.main import main

main()
