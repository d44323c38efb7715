"""The fixture that runs a command of pynade."""

from tests.cli.conftest import run

__all__ = ["run"]
