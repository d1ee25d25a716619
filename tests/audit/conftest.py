"""What the tests of the auditor share."""

import pytest

from eigenclock.cli import main


@pytest.fixture
def run(capsys):
    """The command line: its exit status, and what it wrote to stdout and stderr."""

    def call(*words):
        status = main(["audit", *map(str, words)])
        heard = capsys.readouterr()
        return status, heard.out, heard.err

    return call
