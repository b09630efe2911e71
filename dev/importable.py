"""Makes the checkout importable under its release name, whatever its folder is called.

Invariants:
- Nothing is written into the checkout but its ``.cache``.
"""

import contextlib
import os
import sys

from .setup_hosts import ROOT
from .webui import PLUGIN


def make_plugin_importable() -> None:
    """Lets ``import astrbot_plugin_context_manager`` find this checkout."""
    folder = ROOT / ".cache" / "importable"
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / PLUGIN
    if link.is_symlink() and link.resolve() != ROOT:
        # The checkout was copied or moved.
        link.unlink()
    with contextlib.suppress(FileExistsError):
        link.symlink_to(ROOT, target_is_directory=True)
    sys.path.insert(0, str(folder))


def keep_astrbot_out_of_the_checkout() -> None:
    """AstrBot's core writes into its root when imported; gives it one in the cache."""
    root = ROOT / ".cache" / "astrbot"
    root.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("ASTRBOT_ROOT", str(root))
    os.environ.setdefault("ASTRBOT_DISABLE_METRICS", "1")
