"""Who may import what: reads the imports of every file of the package and holds them against one table."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "jaxbridge"

MODULE_LIBRARIES = {"flax", "haiku", "equinox"}
ARRAYS = {"jax", "numpy"}

# What the upper floors have below them.
UNDER_LAYERS = {"core", "adapters", "backends", "distribution"}
UNDER_EXPORT = {*UNDER_LAYERS, "jax2tf", "layers"}
UNDER_CLI = {*UNDER_EXPORT, "stages", "export", "testing"}

# File or folder -> (what of jaxbridge it may import, which packages it may import), from the lowest floor up: nothing
# imports what stands further down in the table. A file has its own row where it may do more than its folder.
# `errors` and `_optional` are open to all above them.
FLOORS: dict[str, tuple[set[str], set[str]]] = {
    "errors": (set(), set()),
    "_optional": (set(), {"keras", "tensorflow", *MODULE_LIBRARIES}),
    "core": (set(), ARRAYS),
    "jax2tf": ({"core"}, {*ARRAYS, "tensorflow"}),
    "adapters": ({"core"}, {*ARRAYS, *MODULE_LIBRARIES}),
    "backends": ({"core"}, {*ARRAYS, "keras"}),
    # Exporting from the JAX backend converts the model, so needs TensorFlow then; imported where it happens.
    "backends/jax": ({"core", "jax2tf"}, {*ARRAYS, "keras"}),
    "backends/tensorflow": ({"core", "jax2tf"}, {*ARRAYS, "keras", "tensorflow"}),
    "distribution": ({"core", "backends"}, {*ARRAYS, "keras"}),
    "layers": (UNDER_LAYERS, {*ARRAYS, "keras"}),
    # A summary is a table of rich where it is printed with rich.
    "stages": (UNDER_EXPORT, {*ARRAYS, "keras", "rich"}),
    "export": (UNDER_EXPORT, {*ARRAYS, "keras", "tensorflow"}),
    "testing": (UNDER_CLI - {"testing"}, {*ARRAYS, "keras", "tensorflow", "pytest"}),
    "__init__": (UNDER_CLI, set()),
    "__main__": (set(), set()),
}

# Private modules that have no underscore to tell them by.
PRIVATE = ("jaxlib", "keras.src", "tensorflow.python", "tensorflow.compiler", "tensorflow.core")
PRIVATE_FILES = {"jax": "_jax_private.py", "keras": "_keras_private.py", "tensorflow": "_tf_private.py"}

BACKEND_QUESTIONS = {"keras.backend.backend", "keras.config.backend"}
BACKEND_NAMES = {"jax", "tensorflow", "torch"}


def violations(path: str, source: str) -> list[str]:
    """What `source`, as the file `path` (seen from jaxbridge/), does against the table; [] if nothing."""
    tree = ast.parse(source)
    imports = list(imported_modules(path, tree))
    names = [*imports, *used_names(path, tree)]
    found = [*floor_violations(path, imports), *private_violations(path, names)]
    if not path.startswith("backends/"):
        found += backend_violations(tree, names)
    return [f"jaxbridge/{path}: {text}" for text in dict.fromkeys(found)]


def floor_violations(path: str, imports: list[str]) -> Iterator[str]:
    floor = floor_of(path)
    if floor is None:
        yield "stands on no floor: give it a row in FLOORS"
        return
    ours, theirs = FLOORS[floor]
    ours = ours | {floor.split("/")[0]} | (set() if floor == "errors" else {"errors", "_optional"})
    for module in imports:
        root, *rest = module.split(".")
        if root == "jaxbridge":
            target = floor_of("/".join(rest))
            if target is None:
                yield f"imports {module} through the facade: import it from where it is defined"
            elif target.split("/")[0] not in ours:
                yield f"imports {module}, which its floor does not allow"
        elif root not in theirs | set(sys.stdlib_module_names) and not (root == "jaxlib" and "jax" in theirs):
            yield f"imports {module}, which its floor does not allow"
    libraries = sorted({module.split(".")[0] for module in imports} & MODULE_LIBRARIES)
    if len(libraries) > 1 and floor == "adapters":
        yield f"imports {' and '.join(libraries)}: an adapter knows one module library"


def private_violations(path: str, names: list[str]) -> Iterator[str]:
    for name in names:
        if name.split(".")[0] not in {*sys.stdlib_module_names, "jaxbridge"} and is_private(name):
            root = "jax" if name.startswith("jaxlib") else name.split(".")[0]
            home = PRIVATE_FILES.get(root, f"_{root}_private.py")
            if Path(path).name != home:
                yield f"uses the private {name}: only a file named {home} may"


def is_private(name: str) -> bool:
    underscored = any(part.startswith("_") and not part.startswith("__") for part in name.split("."))
    return underscored or any(f"{name}.".startswith(f"{prefix}.") for prefix in PRIVATE)


def backend_violations(tree: ast.AST, names: list[str]) -> Iterator[str]:
    for name in names:
        if name in BACKEND_QUESTIONS:
            yield f"uses {name}: ask jaxbridge.backends for what the backend should do"
        if name.startswith("jaxbridge.backends.") and name.split(".")[2] in BACKEND_NAMES:
            yield f"imports {name}: one backend's file, out of its folder"
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            constants = {leaf.value for leaf in ast.walk(node) if isinstance(leaf, ast.Constant)}
        elif isinstance(node, ast.MatchValue) and isinstance(node.value, ast.Constant):
            constants = {node.value.value}
        else:
            continue
        if compared := constants & BACKEND_NAMES:
            yield f"line {node.lineno}: compares with {', '.join(sorted(compared))}: a branch on the backend"


def floor_of(path: str) -> str | None:
    """The row of a file, a folder or a module given as a path: its own, or that of its folder."""
    parts = path.removesuffix(".py").split("/")
    return next((row for n in (2, 1) if (row := "/".join(parts[:n])) in FLOORS), None)


def imported_modules(path: str, tree: ast.AST) -> Iterator[str]:
    """Dotted names of all that is imported, anywhere in the file; `from a import b` counts as `a.b`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{origin(path, node)}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if function in ("import_module", "__import__", "require"):
                yield str(node.args[0].value)


def origin(path: str, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    folder = ["jaxbridge", *path.split("/")[:-1]]
    return ".".join([*folder[: len(folder) + 1 - node.level], *([node.module] if node.module else [])])


def used_names(path: str, tree: ast.AST) -> Iterator[str]:
    """Dotted names that are read off an imported one, such as `tensorflow.raw_ops` where the file says `tf.raw_ops`."""
    imported = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                root = alias.name.split(".")[0]
                imported[alias.asname or root] = alias.name if alias.asname else root
        elif isinstance(node, ast.ImportFrom):
            imported |= {alias.asname or alias.name: f"{origin(path, node)}.{alias.name}" for alias in node.names}
    for node in ast.walk(tree):
        parts = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if parts and isinstance(node, ast.Name) and node.id in imported:
            yield ".".join([imported[node.id], *reversed(parts)])


FILES = sorted(file.relative_to(PACKAGE).as_posix() for file in PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES)
def test_imports(path: str):
    assert violations(path, (PACKAGE / path).read_text(encoding="utf-8")) == []


def test_the_package_was_found():
    assert "core/pure_model.py" in FILES


def test_each_floor_stands_on_lower_ones():
    rows = list(FLOORS)
    for row, (ours, _) in FLOORS.items():
        assert all(rows.index(lower) < rows.index(row) for lower in ours), row


def test_adapters_and_backends_never_see_each_other():
    assert "backends" not in FLOORS["adapters"][0]
    assert all("adapters" not in ours for row, (ours, _) in FLOORS.items() if row.startswith("backends"))


@pytest.mark.parametrize("path", [path for path in FILES if path.endswith("_private.py")])
def test_private_files_name_tests_that_exist(path: str):
    named = re.findall(r"tests/[\w/]+\.py", (PACKAGE / path).read_text(encoding="utf-8"))
    assert named and [test for test in named if not (PACKAGE.parent / test).exists()] == []


COMMAND = PACKAGE.parent / "jaxbridge_cli"


@pytest.mark.parametrize("path", sorted({file.name for file in COMMAND.glob("*.py")} - {"compiler.py", "self_test.py"}))
def test_imports_of_the_command(path: str):
    """The two files left out need Keras: one is imported by a function, the other is a process of its own."""
    tree = ast.parse((COMMAND / path).read_text(encoding="utf-8"))
    for node in ast.walk(tree):  # what functions import is imported when it is needed
        if isinstance(node, ast.FunctionDef):
            node.body = [ast.Pass()]
    found = {module.split(".")[0] for module in imported_modules(f"jaxbridge_cli/{path}", tree)}
    assert found <= {*sys.stdlib_module_names, "click", "rich", "jaxbridge_cli"}


BAD = [
    ("core/a.py", "import keras", "imports keras"),
    ("core/a.py", "import tensorflow as tf", "imports tensorflow"),
    ("core/a.py", "import flax.linen", "imports flax.linen"),
    ("core/a.py", "import scipy", "imports scipy"),
    ("core/a.py", "def f():\n    import keras", "imports keras"),
    ("core/a.py", "import importlib\nimportlib.import_module('keras')", "imports keras"),
    ("core/a.py", "from jaxbridge import layers", "imports jaxbridge.layers"),
    ("core/a.py", "from jaxbridge.layers.base import Layer", "imports jaxbridge.layers.base"),
    ("core/a.py", "from ..layers import base", "imports jaxbridge.layers.base"),
    ("core/a.py", "from .. import layers", "imports jaxbridge.layers"),
    ("core/deep/a.py", "from ...layers import base", "imports jaxbridge.layers.base"),
    ("core/a.py", "from jaxbridge import FlaxLayer", "through the facade"),
    ("core/a.py", "import jaxbridge", "through the facade"),
    ("core/a.py", "from .. import FlaxLayer", "through the facade"),
    ("errors.py", "import jax", "imports jax"),
    ("errors.py", "from jaxbridge import core", "imports jaxbridge.core"),
    ("errors.py", "from jaxbridge._optional import require", "imports jaxbridge._optional"),
    ("__init__.py", "import jax", "imports jax"),
    ("__init__.py", "import jaxbridge_cli", "imports jaxbridge_cli"),
    ("jax2tf/a.py", "import keras", "imports keras"),
    ("jax2tf/a.py", "from jaxbridge.backends import base", "imports jaxbridge.backends"),
    ("adapters/a.py", "import keras", "imports keras"),
    ("adapters/a.py", "import flax\nimport haiku", "imports flax and haiku"),
    ("adapters/a.py", "require('flax.linen', 'x')\nimport equinox", "imports equinox and flax"),
    ("adapters/a.py", "from jaxbridge.backends import base", "imports jaxbridge.backends"),
    ("adapters/a.py", "from ..backends import base", "imports jaxbridge.backends"),
    ("backends/jax.py", "from jaxbridge.adapters import base", "imports jaxbridge.adapters"),
    ("backends/base.py", "from jaxbridge.jax2tf import convert", "imports jaxbridge.jax2tf"),
    ("backends/jax.py", "import tensorflow", "imports tensorflow"),
    ("backends/tensorflow.py", "from ..adapters import base", "imports jaxbridge.adapters"),
    ("distribution/a.py", "from jaxbridge.layers import base", "imports jaxbridge.layers"),
    ("layers/a.py", "import tensorflow as tf", "imports tensorflow"),
    ("layers/a.py", "import flax", "imports flax"),
    ("layers/a.py", "from jaxbridge.export import report", "imports jaxbridge.export"),
    ("export/a.py", "from jaxbridge_cli import main", "imports jaxbridge_cli"),
    ("new_folder/a.py", "", "stands on no floor"),
    ("new_file.py", "", "stands on no floor"),
    ("core/a.py", "from jax._src import core", "private jax._src"),
    ("core/a.py", "from jax import _src", "private jax._src"),
    ("core/a.py", "import jax\njax._src.core.Tracer", "private jax._src"),
    ("core/a.py", "import jax.numpy as jnp\njnp._private", "private jax.numpy._private"),
    ("core/a.py", "import jaxlib", "private jaxlib"),
    ("core/a.py", "import numpy._core", "only a file named _numpy_private.py"),
    ("core/_jax_private.py", "import keras", "imports keras"),
    ("jax2tf/_tf_private.py", "from jaxlib.mlir import ir", "only a file named _jax_private.py"),
    ("jax2tf/a.py", "from tensorflow.python.eager import record", "private tensorflow.python"),
    ("jax2tf/a.py", "from tensorflow.compiler.tf2xla.python import xla", "only a file named _tf_private.py"),
    ("jax2tf/_jax_private.py", "import tensorflow.python", "private tensorflow.python"),
    ("jax2tf/a.py", "import tensorflow as tf\ntf.python.eager", "private tensorflow.python"),
    ("backends/jax.py", "from keras.src import backend", "only a file named _keras_private.py"),
    ("layers/a.py", "import keras\nkeras.src.backend", "private keras.src"),
    ("layers/a.py", "from keras import src", "private keras.src"),
    ("adapters/a.py", "from flax.core import _hidden", "only a file named _flax_private.py"),
    ("layers/a.py", "import keras\nif keras.backend.backend() == 'jax': pass", "uses keras.backend.backend"),
    ("layers/a.py", "import keras\nname = keras.config.backend()", "uses keras.config.backend"),
    ("layers/a.py", "from keras.config import backend", "uses keras.config.backend"),
    ("layers/a.py", "from keras import config as c\nc.backend()", "uses keras.config.backend"),
    ("layers/a.py", "from jaxbridge.backends import tensorflow", "one backend's file"),
    ("layers/a.py", "from ..backends.jax import BACKEND", "one backend's file"),
    ("layers/a.py", "if backend.name == 'tensorflow': pass", "compares with tensorflow"),
    ("layers/a.py", "if name not in ('jax', 'tensorflow'): pass", "compares with jax, tensorflow"),
    ("layers/a.py", "match name:\n    case 'torch': pass", "compares with torch"),
]

GOOD = [
    ("core/a.py", "import os\nimport jax.numpy as jnp\nimport numpy as np\nfrom jax import export\njnp.zeros"),
    ("core/a.py", "from . import prng\nfrom .prng import fold\nfrom jaxbridge.core.prng import fold"),
    ("core/a.py", "from jaxbridge.errors import ShapeError\nfrom jaxbridge import errors\nfrom .. import errors"),
    ("core/a.py", "from __future__ import annotations\nimport jax\njax.__version__\nfrom os import _exit"),
    ("core/a.py", "from jaxbridge.core._keys import fold\nself._private = array._private"),
    ("core/_jax_private.py", "from jax._src import core\nfrom jaxlib import xla_client"),
    ("jax2tf/_tf_private.py", "from tensorflow.python.eager import record\nimport tensorflow.compiler"),
    ("jax2tf/a.py", "import tensorflow as tf\nfrom jaxbridge.core import prng\nfrom . import _tf_private\ntf.raw_ops"),
    ("adapters/linen.py", "import flax\nfrom flax import linen as nn\nfrom ..core import pure_model"),
    ("adapters/linen.py", "from jaxbridge._optional import require\nrequire('flax.linen', 'FlaxLayer')"),
    ("backends/__init__.py", "import keras\nif keras.backend.backend() == 'jax': pass\nfrom . import jax"),
    ("backends/tensorflow.py", "import keras\nimport tensorflow\nfrom jaxbridge.jax2tf import convert"),
    ("backends/_keras_private.py", "from keras.src import backend"),
    (
        "layers/a.py",
        "from jaxbridge import adapters, backends\nfrom keras import backend\nbackend.floatx",
    ),
    ("layers/a.py", "keras_name = {'jax': 1}['jax']\nif platform == 'cuda': pass"),
    ("__init__.py", "from .layers import FlaxLayer as FlaxLayer\nfrom jaxbridge.export import export_saved_model"),
]


@pytest.mark.parametrize(("path", "source", "message"), BAD)
def test_a_broken_rule_is_found(path: str, source: str, message: str):
    assert message in "\n".join(violations(path, source))


@pytest.mark.parametrize(("path", "source"), GOOD)
def test_what_is_allowed_passes(path: str, source: str):
    assert violations(path, source) == []
