"""axe-core, the accessibility checker of the page's tests.

Invariants:
- One pinned version from npm, installed once into the checkout's cache by the
  setup step; the tests themselves need no network for it.
- It is never part of a release.
"""

import shutil
import subprocess
import sys
from pathlib import Path

VERSION = "4.14.1"
FOLDER = Path(__file__).resolve().parent.parent / ".cache" / f"axe-core-{VERSION}"
SCRIPT = FOLDER / "node_modules" / "axe-core" / "axe.min.js"


def install() -> None:
    """Installs axe-core, unless it is there."""
    if SCRIPT.exists():
        return
    npm = shutil.which("npm")
    if npm is None:
        raise FileNotFoundError("npm is needed once, to install axe-core")
    FOLDER.mkdir(parents=True, exist_ok=True)
    command = [npm, "install", "--silent", "--no-save", "--ignore-scripts", "--prefix", str(FOLDER)]
    subprocess.run([*command, f"axe-core@{VERSION}"], check=True)


def source() -> str:
    """The script to run inside a page."""
    install()
    return SCRIPT.read_text(encoding="utf-8")


if __name__ == "__main__":
    try:
        install()
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"axe-core is not installed, the accessibility tests will fail: {error}")
        sys.exit(0)
