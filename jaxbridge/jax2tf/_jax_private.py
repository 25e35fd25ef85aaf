"""What this package needs of JAX and has no public name (tried with jax 0.10 and 0.12).

`jax.export` serialises StableHLO at a version of its own choosing, about four weeks old; TensorFlow reads only what its
release knew. `jaxlib` has a public function that serialises a module's text at a chosen version, but it does not know
the `sdy` dialect (shardings); the one below knows it. A public function of `jax.export` that takes a version would
replace this file: `tests/jax2tf/test_private_apis.py` fails when the names below move.
"""

from __future__ import annotations

from jax._src.interpreters import mlir as _mlir
from jax._src.lib import _jax
from jaxlib.mlir import ir, passmanager
from jaxlib.mlir.dialects import stablehlo

#: Composites (`chlo.top_k`, exact gelu, asinh, ...) keep a decomposition of their own next to the call. With symbolic
#: sizes TensorFlow's shape refinement does not refine it ("operand has type tensor<3x4xf32>, but decomposition has type
#: tensor<?x4xf32>"), so each becomes an ordinary call of its decomposition.
_PASSES = "builtin.module(func.func(stablehlo-legalize-composite-to-call))"


#: `jax.export` asserts that every symbolic size is at least 1 and that the constraints hold; `convert` checks the latter
#: itself and allows 0. The op would skip the assertions, but their texts are a third of a small module.
_SHAPE_ASSERTION = "stablehlo.custom_call @shape_assertion("


def portable_module(mlir_text: str) -> str:
    """Returns a module's text in the form every reader takes: composites as calls, no debug locations, no assertions."""
    with _mlir.make_ir_context():
        stablehlo.register_stablehlo_passes()
        module = ir.Module.parse(mlir_text)
        passmanager.PassManager.parse(_PASSES).run(module.operation)
        lines = str(module).splitlines()
    return "\n".join(line for line in lines if not line.lstrip().startswith(_SHAPE_ASSERTION))


def serialize_module(mlir_text: str, version: str) -> bytes:
    """Returns a module as a portable artifact of StableHLO `version`, such as "1.13.0"."""
    return _jax.mlir.serialize_portable_artifact(mlir_text, version, True)


def written_version() -> str:
    """Returns the newest StableHLO version that the installed JAX can write."""
    return stablehlo.get_current_version()


def oldest_version() -> str:
    """Returns the oldest StableHLO version that the installed JAX can write."""
    return stablehlo.get_minimum_version()
