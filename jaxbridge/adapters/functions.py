"""Plain functions as PureModels."""

from __future__ import annotations

import inspect
from typing import Any, ClassVar

from jaxbridge.adapters.base import Adapted, Adapter, ModuleOptions
from jaxbridge.core.functions import from_functions
from jaxbridge.errors import SignatureError


class FunctionAdapter(Adapter):
    """Functions of the contract that `JaxLayer` states: `call_fn`, or a pair `(init_fn, call_fn)`."""

    library: ClassVar[str] = "builtins"
    options: ClassVar[frozenset[str]] = frozenset({"variables"})

    def handles(self, module: Any) -> bool:
        if isinstance(module, tuple) and type(module) is tuple:
            return len(module) == 2 and all(map(inspect.isroutine, module))
        return inspect.isroutine(module)

    def adapt(self, module: Any, options: ModuleOptions) -> Adapted:
        init_fn, call_fn = module if isinstance(module, tuple) else (None, module)
        model, needs = from_functions(call_fn, init_fn, typed_keys=True)
        start = (None, None) if options.variables is None else options.variables
        if init_fn is None and options.variables is None and needs:
            raise SignatureError(
                f"The function takes `{needs[0]}` and nothing says what it starts from. Pass `(init_fn, call_fn)`, or "
                "`variables=(params, state)`."
            )
        return Adapted(model, start)
