"""The server that the tests of the page and its API share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from servers import start_process


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The address of a real `everybyte ui` process."""
    process, base = start_process()
    yield base
    process.terminate()
    process.communicate(timeout=10)
