"""The command line for tests of the paper's commands."""

from tests.cli.conftest import run  # noqa: F401
