"""A pytest plugin that runs tests once per Keras backend, each backend in a process of its own.

Keras chooses its backend when it is imported, so one process cannot test two. Switch it on in a `conftest.py`:

    pytest_plugins = ["jaxbridge.testing.pytest_plugin"]

and run `pytest --keras-backends jax,tensorflow`. Tests that ask for the fixture `keras_backend`, carry the marker
`keras_backends`, or lie below a path of the ini option `keras_backends_paths`, run once per backend; the marker may name
the backends that a test is for: `@pytest.mark.keras_backends("jax")`. A backend that was asked for and is not installed
fails its tests. Without the option such tests run once, on the backend of this process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from jaxbridge import backends

_OPTION = "--keras-backends"
_CHILD = "--keras-backends-report-to"
_SELECTION = "--keras-backends-selection"
_FIXTURE = "keras_backend"
_MARKER = "keras_backends"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("keras")
    group.addoption(_OPTION, default="", help="comma-separated Keras backends to run tests on, each in its own process")
    group.addoption(_CHILD, default="", help="(internal) the file that a backend's process reports to")
    group.addoption(_SELECTION, default="", help="(internal) the file with the tests that a backend's process runs")
    parser.addini("keras_backends_paths", "paths below which all tests run once per Keras backend", type="paths")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", f"{_MARKER}(*names): runs once per Keras backend (only on these, if any are named)"
    )
    if config.getoption(_CHILD):
        config.pluginmanager.register(_Reporter(config), "keras-backends-reporter")
    elif backends_of(config):
        if getattr(config.option, "numprocesses", None) or hasattr(config, "workerinput"):
            raise pytest.UsageError(f"{_OPTION} starts processes of its own; leave out -n.")
        config.pluginmanager.register(_Distributor(config), "keras-backends-distributor")


@pytest.fixture
def keras_backend(request: pytest.FixtureRequest) -> str:
    """The name of the Keras backend that the test runs on."""
    name = backends.name()
    asked = getattr(request, "param", name)
    assert name == asked, f"the test is for Keras' {asked} backend and runs on {name}"
    return name


def backends_of(config: pytest.Config) -> list[str]:
    """Returns the backends that were asked for on the command line."""
    return [name.strip() for name in str(config.getoption(_OPTION)).split(",") if name.strip()]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marker = metafunc.definition.get_closest_marker(_MARKER)
    folders = metafunc.config.getini("keras_backends_paths")
    below = any(Path(metafunc.definition.path).is_relative_to(folder) for folder in folders)
    asked = backends_of(metafunc.config)
    if not asked or not (marker or below or _FIXTURE in metafunc.fixturenames):
        return
    if _FIXTURE not in metafunc.fixturenames:
        metafunc.fixturenames.append(_FIXTURE)
    names = [name for name in asked if marker is None or not marker.args or name in marker.args]
    metafunc.parametrize(_FIXTURE, names, indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # Tests that are only for backends that nobody asked for are left out.
    asked = backends_of(config) or [backends.name()]
    kept = [
        any(_is_for(item, name) for name in ([_backend_of(item)] if _backend_of(item) else asked)) for item in items
    ]
    if not all(kept):
        config.hook.pytest_deselected(items=[item for item, is_kept in zip(items, kept, strict=True) if not is_kept])
        items[:] = [item for item, is_kept in zip(items, kept, strict=True) if is_kept]


def _is_for(item: pytest.Item, backend: str | None) -> bool:
    # A test and a single parameter of it may both have one.
    own = [marker for marker in item.own_markers if marker.name == _MARKER]
    markers = own or filter(None, [item.get_closest_marker(_MARKER)])
    return all(not marker.args or backend in marker.args for marker in markers)


def _backend_of(item: pytest.Item) -> str | None:
    return getattr(getattr(item, "callspec", None), "params", {}).get(_FIXTURE)


class _Distributor:
    """In the process that the user started: hands tests to one process per backend, and passes on what they report."""

    def __init__(self, config: pytest.Config):
        self.config = config

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Iterator[None]:
        if session.config.option.collectonly:
            return (yield)
        remote: dict[str, list[pytest.Item]] = {}
        for item in session.items:
            if (backend := _backend_of(item)) is not None:
                remote.setdefault(backend, []).append(item)
        session.items[:] = [item for item in session.items if _backend_of(item) is None]
        with tempfile.TemporaryDirectory() as folder:
            processes = [_Process(self.config, backend, items, Path(folder)) for backend, items in remote.items()]
            try:
                result = yield  # the tests that are left run here, beside them
                for process in processes:
                    if not (session.shouldfail or session.shouldstop):
                        process.relay(session)
            finally:
                for process in processes:
                    process.end()
        return result


class _Process:
    """A backend's process, as the process that started it sees it."""

    def __init__(self, config: pytest.Config, backend: str, items: list[pytest.Item], folder: Path):
        self.config, self.backend, self.items = config, backend, items
        self.report, self.output = folder / f"{backend}.report", folder / f"{backend}.output"
        self.report.touch()
        selection = folder / f"{backend}.selection"
        selection.write_text("\n".join(item.nodeid for item in items))
        with self.output.open("w") as stream:
            self.process = subprocess.Popen(
                self._command(selection),
                env={**os.environ, "KERAS_BACKEND": backend},
                cwd=config.rootpath,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
            )

    def end(self) -> None:
        self.process.kill()
        self.process.wait()

    def relay(self, session: pytest.Session) -> None:
        """Passes on all that the process reports, and reports what it lost."""
        finished = set(self._relayed())
        for item in self.items:
            if item.nodeid not in finished and not (session.shouldfail or session.shouldstop):
                self._report_lost(item)

    def _command(self, selection: Path) -> list[str]:
        names = ",".join(backends_of(self.config))
        root = self.config.inipath or self.config.rootpath
        place = ["-c", str(root)] if self.config.inipath else ["--rootdir", str(root)]
        kept = [
            "-p",
            __name__,
            *place,
            _OPTION,
            names,
            _CHILD,
            str(self.report),
            _SELECTION,
            str(selection),
            *dict.fromkeys(str(item.path) for item in self.items),
            "-q",
            "-p",
            "no:cacheprovider",
        ]
        if self.config.option.maxfail:
            kept.append(f"--maxfail={self.config.option.maxfail}")
        return [sys.executable, "-m", "pytest", *kept]

    def _relayed(self) -> Iterator[str]:
        """Passes on the reports as they come; yields the tests that have ended."""
        with self.report.open() as lines:
            pending = ""
            while True:
                ended = self.process.poll() is not None
                pending += lines.read()
                *complete, pending = pending.split("\n")
                for line in complete:
                    data = json.loads(line)
                    found = self.config.hook.pytest_report_from_serializable(config=self.config, data=data)
                    self.config.hook.pytest_runtest_logreport(report=found)
                    if found.when == "teardown":
                        yield found.nodeid
                if ended:
                    return
                try:
                    self.process.wait(0.1)
                except subprocess.TimeoutExpired:
                    continue

    def _report_lost(self, item: pytest.Item) -> None:
        text = (
            f"The process of Keras' {self.backend} backend ended (exit code {self.process.returncode}) without running "
            f"this test:\n{self.output.read_text()[-3000:]}"
        )
        report = pytest.TestReport(item.nodeid, item.location, {}, "failed", text, "call")
        self.config.hook.pytest_runtest_logreport(report=report)


class _Reporter:
    """In a backend's process: writes every report to a file."""

    def __init__(self, config: pytest.Config):
        self.config = config
        self.file = Path(str(config.getoption(_CHILD))).open("a")  # noqa: SIM115  (closed in unconfigure)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        # Not by naming them on the command line: one that this backend does not have would stop all of them.
        selection = set(Path(str(self.config.getoption(_SELECTION))).read_text().split("\n"))
        items[:] = [item for item in items if item.nodeid in selection]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
        self.file.write(json.dumps(data, default=str) + "\n")
        self.file.flush()

    def pytest_unconfigure(self) -> None:
        self.file.close()
