"""`python -m pynade` is the command `pynade`; so is `torchrun … -m pynade`."""

from pynade.cli.main import main

if __name__ == "__main__":
    main()
