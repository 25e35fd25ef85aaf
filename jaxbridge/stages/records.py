"""What the compiler says, in the shape of `jax.stages`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from jaxbridge.errors import LoweringError

#: The dialects of `Lowered.as_text`.
DIALECTS = ("stablehlo", "hlo")


@dataclasses.dataclass(frozen=True)
class MemoryStats:
    """Bytes that a compiled program needs on each device; None where the platform does not say.

    Attributes:
        argument_size_in_bytes: variables and inputs.
        output_size_in_bytes: outputs and new state.
        temp_size_in_bytes: intermediate values.
        alias_size_in_bytes: outputs that take the place of arguments.
        generated_code_size_in_bytes: the program itself.
        peak_memory_in_bytes: the compiler's own estimate of the most that is in use at one time; on CPU it leaves out
            temporary values.
    """

    argument_size_in_bytes: int | None
    output_size_in_bytes: int | None
    temp_size_in_bytes: int | None
    alias_size_in_bytes: int | None
    generated_code_size_in_bytes: int | None
    peak_memory_in_bytes: int | None

    @property
    def allocated_size_in_bytes(self) -> int | None:
        """What is allocated while the program runs: arguments, outputs, temporary values, less what outputs share."""
        parts = (self.argument_size_in_bytes, self.output_size_in_bytes, self.temp_size_in_bytes)
        known = [part for part in (*parts, self.alias_size_in_bytes) if part is not None]
        return sum(known[:3]) - known[3] if len(known) == 4 else None


class Compiled:
    """A compiled layer or model, in the shape of `jax.stages.Compiled`: what the compiler made of it, not to be called.

    Attributes:
        input_shardings: the pair of positional and keyword arguments' shardings, in the structure of
            `Lowered.args_info`: the variables by path and the inputs.
        output_shardings: in the structure of `Lowered.out_info`.
    """

    def __init__(
        self,
        text: str | None,
        cost: dict[str, float] | None,
        memory: MemoryStats | None,
        input_shardings: Any,
        output_shardings: Any,
    ):
        self._text, self._cost, self._memory = text, cost, memory
        self.input_shardings = input_shardings
        self.output_shardings = output_shardings

    def as_text(self) -> str | None:
        """Returns the optimized program, as the platform writes it (HLO); None where it does not."""
        return self._text

    def cost_analysis(self) -> dict[str, float] | None:
        """Returns the compiler's counts: "flops", "bytes accessed" and others; None where the platform has none."""
        return None if self._cost is None else dict(self._cost)

    def memory_analysis(self) -> MemoryStats | None:
        """Returns the bytes that the program needs on each device; None where the platform does not say."""
        return self._memory


class Lowered:
    """A lowered layer or model, in the shape of `jax.stages.Lowered`.

    Attributes:
        args_info: the positional and keyword arguments of the program: `((variables, inputs), {})`, of
            `jax.ShapeDtypeStruct`. The variables are a dict by Keras path.
        out_info: what it returns: `(outputs, losses, state)`, where the state has the variables that change, by path;
            with `gradient` a fourth entry, the gradients by path.
    """

    def __init__(
        self,
        args_info: Any,
        out_info: Any,
        text: Callable[[str], str],
        cost: Callable[[], dict[str, float] | None],
        compile: Callable[[], Compiled],
    ):
        self.args_info = args_info
        self.out_info = out_info
        self._text, self._cost, self._compile = text, cost, compile

    def as_text(self, dialect: str | None = None) -> str:
        """Returns the program before it is optimized.

        Args:
            dialect: "stablehlo" (None) or "hlo".

        Raises:
            LoweringError: the dialect is another, or the program has unknown sizes, which HLO cannot have.
        """
        if dialect not in (None, *DIALECTS):
            raise LoweringError(f"`dialect` must be one of {', '.join(map(repr, DIALECTS))} or None, got {dialect!r}.")
        return self._text(dialect or DIALECTS[0])

    def cost_analysis(self) -> dict[str, float] | None:
        """Returns the counts of the program before it is optimized: "flops", "bytes accessed" and others.

        None where sizes are unknown, and where it was lowered for another platform than the one that JAX runs on here.
        """
        return self._cost()

    def compile(self) -> Compiled:
        """Compiles it; nothing is run and no weight has a value.

        Raises:
            LoweringError: sizes are unknown, it was lowered for another platform, or the compiler refuses it.
        """
        return self._compile()


def compiled_record(compiled: jax.stages.Compiled) -> Compiled:
    """Returns what JAX's own compiled program says."""
    memory = compiled.memory_analysis()
    names = [field.name for field in dataclasses.fields(MemoryStats)]
    return Compiled(
        compiled.as_text(),
        cost_dict(compiled.cost_analysis()),
        None if memory is None else MemoryStats(**{name: getattr(memory, name, None) for name in names}),
        compiled.input_shardings,
        compiled.output_shardings,
    )


def cost_dict(cost: Any) -> dict[str, float] | None:
    """Returns what `cost_analysis` gave as a dict; some platforms and releases give a list of one, or nothing."""
    if isinstance(cost, list | tuple):
        cost = cost[0] if cost else None
    return None if cost is None else dict(cost)
