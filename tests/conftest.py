"""Makes the plugin importable under its release name, whatever the checkout is called.

AstrBot's core writes into its root when it is imported; here that root is a
folder of the cache and never the checkout.
"""

import contextlib
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "astrbot_plugin_context_manager"


def _make_importable() -> None:
    folder = ROOT / ".cache" / "importable"
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        (folder / PACKAGE).symlink_to(ROOT, target_is_directory=True)
    sys.path.insert(0, str(folder))


def _keep_astrbot_out_of_the_checkout() -> None:
    root = ROOT / ".cache" / "astrbot"
    root.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("ASTRBOT_ROOT", str(root))
    os.environ.setdefault("ASTRBOT_DISABLE_METRICS", "1")


_make_importable()
_keep_astrbot_out_of_the_checkout()
