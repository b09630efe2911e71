"""Creates one virtual environment per supported AstrBot version.

Each environment lies in ``.venvs/<version>`` and holds that host, the plugin's
own requirements and the tools of the tests.

Invariants:
- A stamp file holds the hash of all inputs, so a finished environment costs
  nothing on the next call and a changed requirement rebuilds it.
- No Python is downloaded: the interpreter is one that the machine has.
- Runs on a bare Python 3.9+ with nothing but ``venv`` or an installed ``uv``.
"""

import argparse
import glob
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENVS = ROOT / ".venvs"
HOSTS = {"4.26.7": ("3.12", "3.13"), "4.29.3": ("3.13", "3.12")}
REQUIREMENTS = (ROOT / "requirements.txt", ROOT / "dev" / "requirements.txt")
STAMP = ".setup-stamp"


class SetupError(Exception):
    """The environment of a host could not be made; the text says why."""


def host_python(version: str) -> Path:
    """Returns the interpreter of the environment of one host version."""
    return VENVS / version / "bin" / "python"


def _answers(command: list) -> bool:
    try:
        done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _uv_command() -> list:
    """Finds uv, or installs it into an environment of its own."""
    tools = VENVS / "tools" / "bin" / "python"
    for command in ([sys.executable, "-m", "uv"], ["uv"], [str(tools), "-m", "uv"]):
        if _answers([*command, "--version"]):
            return command
    subprocess.run([sys.executable, "-m", "venv", str(tools.parent.parent)], check=True)
    subprocess.run([str(tools), "-m", "pip", "install", "-q", "uv"], check=True)
    return [str(tools), "-m", "uv"]


def _python_candidates(minor: str) -> list:
    pyenv = os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))
    installed = sorted(glob.glob(f"{pyenv}/versions/{minor}.*/bin/python{minor}"))
    on_path = shutil.which(f"python{minor}")
    return [*reversed(installed), *([on_path] if on_path else [])]


def _find_python(minors: tuple) -> str:
    for minor in minors:
        for candidate in _python_candidates(minor):
            if _answers([candidate, "-c", "import venv, sqlite3, ssl"]):
                return candidate
    wanted = " or ".join(minors)
    raise SetupError(f"Python {wanted} not found on PATH or in pyenv")


def _fingerprint(version: str) -> str:
    digest = hashlib.sha256(version.encode())
    for path in (*REQUIREMENTS, Path(__file__)):
        digest.update(path.read_bytes() if path.exists() else b"-")
    return digest.hexdigest()


def _install(uv: list, version: str, python: str) -> None:
    folder = VENVS / version
    environment = {**os.environ, "UV_PYTHON_DOWNLOADS": "never", "UV_NO_PROGRESS": "1"}
    environment.pop("VIRTUAL_ENV", None)
    if not host_python(version).exists():
        subprocess.run(
            [*uv, "venv", "-q", "--clear", "--python", python, str(folder)],
            check=True,
            env=environment,
        )
    wanted = [f"astrbot=={version}"]
    for path in REQUIREMENTS:
        if path.exists():
            wanted += ["-r", str(path)]
    target = ["--python", str(host_python(version))]
    subprocess.run(
        [*uv, "pip", "install", "-q", "--compile-bytecode", *target, *wanted],
        check=True,
        env=environment,
    )


def set_up(version: str) -> None:
    """Makes the environment of one host version, unless it is up to date."""
    stamp = VENVS / version / STAMP
    fingerprint = _fingerprint(version)
    if stamp.exists() and stamp.read_text() == fingerprint:
        return
    python = _find_python(HOSTS[version])
    print(f"setting up AstrBot {version} with {python}", flush=True)
    VENVS.mkdir(exist_ok=True)
    _install(_uv_command(), version, python)
    stamp.write_text(fingerprint)


def main() -> int:
    """Sets up the named versions, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("versions", nargs="*", choices=[*HOSTS, []], default=[])
    for version in parser.parse_args().versions or HOSTS:
        try:
            set_up(version)
        except (SetupError, subprocess.CalledProcessError) as error:
            print(f"cannot set up AstrBot {version}: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
