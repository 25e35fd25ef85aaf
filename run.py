"""Runs the example, the tests and the linters: `python3 run.py digits`, `python3 run.py test`, `python3 run.py lint`.

In an active environment it installs what the command needs and the environment lacks. Without one it makes `.venv` and
works there.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 (the one file that an older Python may be asked to run)
    sys.exit("jaxbridge needs Python 3.11 or newer; this is " + sys.version.split()[0] + " at " + sys.executable)

import argparse
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tomllib
import venv
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
BACKENDS = ("jax", "tensorflow")
SHOWN_VERSIONS = ("jax", "jaxlib", "flax", "keras", "tensorflow", "tensorflow-cpu", "numpy")


def main() -> int:
    options, rest = parse(sys.argv[1:])
    if not in_environment():
        prepare_venv()
        return run([VENV_PYTHON, __file__, *sys.argv[1:]])
    install_missing("examples" if options.command == "digits" else "dev")
    return COMMANDS[options.command](options, rest)


def parse(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    add = lambda name, text: commands.add_parser(name, help=text, description=text, allow_abbrev=False)
    add("digits", "run examples/digits.py; KERAS_BACKEND chooses the backend (jax), other arguments are passed on")
    test = add("test", "run the fast tests, on each Keras backend where it matters; other arguments go to pytest")
    test.add_argument("--backend", choices=BACKENDS, action="append", help="only this backend")
    add("lint", "run ruff and pyright")
    add("setup", "only install what the other commands need")
    options, rest = parser.parse_known_args(arguments)
    if rest and options.command in ("lint", "setup"):
        parser.error(f"{options.command} takes no arguments: {' '.join(rest)}")
    return options, rest


# The environment


def in_environment() -> bool:
    return sys.prefix != sys.base_prefix or sys.prefix == os.environ.get("CONDA_PREFIX")


def prepare_venv() -> None:
    """Makes `.venv`, anew when the one made here before was for another Python or other requirements."""
    made_for = repr((sys.version, sys.base_prefix, PROJECT["dependencies"], PROJECT["optional-dependencies"]))
    stamp = VENV / "jaxbridge-stamp"
    digest = hashlib.sha256(made_for.encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == digest and VENV_PYTHON.exists():
        return
    if stamp.exists() or not VENV_PYTHON.exists():  # one without our stamp is somebody's own: only added to
        create_venv()
    if run([VENV_PYTHON, __file__, "setup"]) != 0:
        sys.exit("the installation failed, see above")
    stamp.write_text(digest)


def create_venv() -> None:
    print(f"== making {VENV}", flush=True)
    try:
        venv.create(VENV, clear=True, with_pip=True)
    except subprocess.CalledProcessError:
        shutil.rmtree(VENV)
        sys.exit(f"{sys.executable} cannot make an environment with pip in it (Debian: apt install python3-venv)")


def install_missing(extra: str) -> None:
    needed = [line for line in [*PROJECT["dependencies"], *requirements(extra)] if not installed(line)]
    ours = [] if installed("jaxbridge") else ["--editable", str(ROOT)]
    if needed or ours:
        print(f"== installing into {sys.prefix}", flush=True)
        install(*ours, *needed)


def requirements(extra: str) -> Iterator[str]:
    """The requirements of an extra and of the extras of this project that it names."""
    for line in PROJECT["optional-dependencies"][extra]:
        nested = re.fullmatch(r"jaxbridge\[(.*)\]", line)
        if nested:
            for name in nested[1].split(","):
                yield from requirements(name)
        else:
            yield line


def installed(requirement: str) -> bool:
    name = re.match(r"[\w.-]+", requirement)[0]
    if name.startswith("tensorflow"):  # any of its builds will do, and two of them in one environment break each other
        return importlib.util.find_spec("tensorflow") is not None
    try:
        return metadata.distribution(name) is not None
    except metadata.PackageNotFoundError:
        return False


def install(*arguments: str) -> None:
    uv = shutil.which("uv")
    if uv:
        if run([uv, "pip", "install", "--quiet", "--python", sys.executable, *arguments]) == 0:
            return
        print("== uv failed; trying pip", flush=True)
    if run([sys.executable, "-m", "pip", "install", "-qq", *arguments]) != 0:
        sys.exit(f"could not install into {sys.prefix}: {' '.join(arguments)}")


def run(command: list, **environment: str) -> int:
    return subprocess.run([str(part) for part in command], cwd=ROOT, env=os.environ | environment).returncode


# The commands


def digits(options: argparse.Namespace, rest: list[str]) -> int:
    return run([sys.executable, "examples/digits.py", *rest], **on_backend(os.environ.get("KERAS_BACKEND", "jax")))


def test(options: argparse.Namespace, rest: list[str]) -> int:
    backends = ",".join(options.backend or BACKENDS)
    print(f"\n== tests on Keras' backends {backends}: {versions()}", flush=True)
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "--keras-backends", backends, *rest]
    return run(command, **on_backend(backends.split(",")[0]))


def lint(options: argparse.Namespace, rest: list[str]) -> int:
    ruff = [sys.executable, "-m", "ruff"]
    pyright = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable]
    return int(any([run([*ruff, "check"]), run([*ruff, "format", "--check"]), run(pyright)]))


def setup(options: argparse.Namespace, rest: list[str]) -> int:
    print(f"== {sys.prefix}: {versions()}", flush=True)
    return 0


def on_backend(backend: str) -> dict[str, str]:
    return {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2")}


def versions() -> str:
    found = {dist.name.replace("_", "-"): dist.version for dist in metadata.distributions()}
    return ", ".join([f"Python {sys.version.split()[0]}", *(f"{n} {found[n]}" for n in SHOWN_VERSIONS if n in found)])


COMMANDS = {"digits": digits, "test": test, "lint": lint, "setup": setup}

if __name__ == "__main__":
    sys.exit(main())
