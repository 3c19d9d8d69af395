"""The console script `tessera`: becomes the binary that the wheel carries."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

BINARY = Path(__file__).parent / "bin" / "tessera"


def main() -> NoReturn:
    """Replace this process by the binary, with the same arguments."""
    try:
        os.execv(BINARY, ["tessera", *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"tessera: cannot run {BINARY}: {error.strerror}; reinstall tessera-kv")
