"""Floor 2: JAX functions as TensorFlow functions. Takes the place of `jax.experimental.jax2tf`.

    from jaxbridge import jax2tf          # instead of: from jax.experimental import jax2tf

`convert`, `eval_polymorphic_shape`, `dtype_of_val` and `DisabledSafetyCheck` have the same contract. `PolyShape`, `call_tf`
and `split_to_logical_devices` are not here; asking for one says what to write instead.
"""

from typing import Any as _Any

from jax.export import DisabledSafetyCheck as DisabledSafetyCheck

from jaxbridge._optional import require as _require

_require("tensorflow", "jaxbridge.jax2tf")

from jaxbridge.jax2tf.convert import convert as convert  # noqa: E402
from jaxbridge.jax2tf.dropin import REPLACED as _REPLACED  # noqa: E402
from jaxbridge.jax2tf.dropin import dtype_of_val as dtype_of_val  # noqa: E402
from jaxbridge.jax2tf.dropin import eval_polymorphic_shape as eval_polymorphic_shape  # noqa: E402
from jaxbridge.jax2tf.patch import install as install  # noqa: E402
from jaxbridge.jax2tf.patch import patch as patch  # noqa: E402
from jaxbridge.jax2tf.patch import uninstall as uninstall  # noqa: E402
from jaxbridge.jax2tf.statistics import Statistics as Statistics  # noqa: E402
from jaxbridge.jax2tf.statistics import stats as stats  # noqa: E402


def __getattr__(name: str) -> _Any:
    if name in _REPLACED:
        raise AttributeError(f"`jaxbridge.jax2tf` has no `{name}`. {_REPLACED[name]}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
