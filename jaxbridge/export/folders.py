"""The folder of a SavedModel: everything is made in one beside it, and put there by renaming.

A process that is killed leaves its folder. The next export to the same path finds it, as nobody holds the lock in it any
more, puts back what it had taken away, and removes it.
"""

from __future__ import annotations

import contextlib
import fnmatch
import importlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxbridge.errors import ExportError

#: Locked by the export that owns the folder; a lock ends with its process.
_LOCK = "jaxbridge-export.lock"
_REPLACED = "replaced"

#: What TensorFlow, Keras and `export_saved_model` write, below a SavedModel: all else is somebody's.
_WRITTEN = (
    *("saved_model.pb", "saved_model.pbtxt", "fingerprint.pb", "keras_metadata.pb", "assets", "debug"),
    *("variables/variables.*", "assets.extra/jaxbridge.json", "assets.extra/jaxbridge"),
)


def check_directory(target: Path) -> None:
    """Raises an ExportError where something else than a SavedModel would be replaced."""
    if target.exists() and (
        not target.is_dir() or (any(target.iterdir()) and not (target / "saved_model.pb").exists())
    ):
        raise ExportError(
            f"{target} exists and is no SavedModel; it is not replaced. Choose another path or remove it."
        )


@contextlib.contextmanager
def workshop(target: Path) -> Iterator[Path]:
    """Returns a context with an empty folder on the target's file system; nothing of it is left, nor a new parent.

    Raises:
        ExportError: nothing can be written there.
    """
    missing = [parent for parent in target.parents if not parent.exists()]
    with contextlib.ExitStack() as stack:
        stack.callback(_remove_empty, missing)
        with writing_to(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            _remove_stale(target)
            folder = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            stack.enter_context(_locked(folder))
        yield folder


@contextlib.contextmanager
def writing_to(target: Path, *errors: type[Exception]) -> Iterator[None]:
    """Returns a context in which an OSError, or one of `errors`, becomes an ExportError that says what to do."""
    try:
        yield
    except (OSError, *errors) as error:
        advice = "Choose a `path` whose parent is a folder that you may write in, or can be made one."
        if not isinstance(error, PermissionError | NotADirectoryError | FileExistsError) and target.parent.is_dir():
            free = shutil.disk_usage(target.parent).free
            advice = f"{free / 1e6:,.0f} MB are free there: see whether the disk or a quota is full, or choose another `path`."
        raise ExportError(
            f"Nothing can be written in {target.parent} ({type(error).__name__}: {error}). {advice} Nothing was left behind."
        ) from error


def put(written: Path, target: Path, replaced: Path) -> None:
    """Renames what was written to the target. What was there before comes back if that fails.

    Of an older SavedModel, files that are somebody's (`assets.extra/tf_serving_warmup_requests`, a README) stay.
    """
    check_directory(target)  # again: an export takes a while
    had_one = target.exists()
    if had_one:
        _keep(target, written)
        os.rename(target, replaced)
    try:
        os.rename(written, target)
    except OSError:
        if had_one:
            os.rename(replaced, target)
        raise


def _keep(old: Path, new: Path) -> None:
    """Gives the new SavedModel the files of the old one that neither TensorFlow nor an export wrote."""
    for folder, folders, files in os.walk(old):
        below = Path(folder).relative_to(old)
        folders[:] = [name for name in folders if not _is_written(below / name)]
        links = [name for name in folders if (Path(folder) / name).is_symlink()]
        for name in (*files, *links):
            kept = new / below / name
            if not _is_written(below / name) and not kept.exists():
                kept.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(Path(folder) / name, kept, follow_symlinks=False)


def _is_written(path: Path) -> bool:
    return any(fnmatch.fnmatchcase(path.as_posix(), pattern) for pattern in _WRITTEN)


def _remove_empty(folders: list[Path]) -> None:
    for folder in folders:
        with contextlib.suppress(OSError):  # not empty: the export succeeded; or never made
            folder.rmdir()


# Locks. A system without `fcntl` (Windows) keeps what was left.


def _remove_stale(target: Path) -> None:
    """Removes the folders of exports to the target that were killed; one that runs is left alone."""
    for folder in target.parent.glob(f".{target.name}-*"):
        with contextlib.suppress(OSError), (folder / _LOCK).open("r+b") as file:  # no export's, or another user's
            if not _lock(file):
                continue
            if (folder / _REPLACED).is_dir() and not target.exists():  # killed between the two renames of `put`
                os.rename(folder / _REPLACED, target)
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    # It has its name only once it is locked, so that nobody takes a folder that was just made for one that was left.
    making = folder / f"{_LOCK}.new"
    with making.open("wb") as file:
        _lock(file)
        os.rename(making, folder / _LOCK)
        yield


def _lock(file: Any) -> bool:
    """Locks a file; returns whether it could, as nobody else holds it."""
    try:
        fcntl: Any = importlib.import_module("fcntl")
    except ImportError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
