"""Sequential: Keras' Sequential, in which bridge layers that follow each other run as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from jaxbridge.core.arguments import Kind, checked
from jaxbridge.layers.chain import Chain, may_be_chained, may_follow, one_by_one


@keras.saving.register_keras_serializable(package="jaxbridge")
class Sequential(keras.Sequential):
    """A `keras.Sequential` in which bridge layers that follow each other are compiled and called as one function.

    Takes the place of `keras.Sequential`: it has the same layers, variables, paths, files and numbers, random draws included.
    Only the calls differ. On the TensorFlow backend the layers are one op of the graph instead of one each, and an eager call
    has the cost of one layer; inside a model of another kind it is a layer like any other.

    A layer runs by itself where the function of several could not do what it does: native layers, layers with
    `compute_output_shape_fn`, an `activity_regularizer`, or `polymorphic_shapes` of their own (unless they come first),
    subclasses with their own `call`, and layers of another dtype policy than the one before. So do all of them while a Keras
    mask is passed, while a `keras.distribution` is in effect, where only the running graph knows the training flag, and where
    they cannot be traced together for unknown sizes.

    Args:
        layers: the layers, as `keras.Sequential` takes them.
        trainable: whether the model's variables are trained.
        name: the name.

    Example:
        >>> import flax.linen as nn, keras, numpy as np
        >>> from jaxbridge import FlaxLayer, Sequential
        >>> model = Sequential([keras.Input((4,)), *(FlaxLayer(nn.Dense(4), name=f"d{i}") for i in range(3))], name="net")
        >>> model(np.ones((2, 4), "float32")).shape[1], model.weights[0].path
        (4, 'net/d0/params/bias')
    """

    @checked(trainable=Kind("True or False", lambda value: isinstance(value, bool)))
    def __init__(self, layers: Sequence[Any] | None = None, trainable: bool = True, name: str | None = None):
        self._runs = _Runs()
        super().__init__(layers, trainable=trainable, name=name)

    def build(self, input_shape: Any = None) -> None:
        """Builds the layers for an input of this shape."""
        self._runs = _Runs()
        super().build(input_shape)
        self._runs.find(self)

    def call(self, inputs: Any, training: Any = None, mask: Any = None, **kwargs: Any) -> Any:
        """Runs the layers.

        Args:
            inputs: the input.
            training: whether in training mode.
            mask: the Keras mask.
            **kwargs: further context arguments, which layers are registered for.
        """
        if self._runs.model is None or kwargs:
            return super().call(inputs, training=training, mask=mask, **kwargs)
        return self._runs.model.call(inputs, training=training, mask=mask)


class _Runs:
    """A model of the same layers, of which some are called together; Keras does not see it: the layers are the Sequential's."""

    def __init__(self) -> None:
        self.model: keras.Model | None = None

    def find(self, sequential: keras.Sequential) -> None:
        """Sets the model, if there is anything to be called together."""
        runs = _grouped(sequential.layers)
        try:
            (inputs,) = sequential.inputs
        except AttributeError:  # its inputs are a structure, and it calls the layers in a loop
            return
        if all(len(run) == 1 for run in runs):
            return
        outputs: Any = inputs
        for run in runs:
            outputs = _Run(run)(outputs)
        self.model = keras.Model(inputs, outputs, name=f"{sequential.name}_in_runs")


def _grouped(layers: Sequence[Any]) -> list[list[Any]]:
    """Returns the layers in groups of those that can be called together."""
    groups: list[list[Any]] = []
    for layer in layers:
        group = groups[-1] if groups else []
        joins = (
            bool(group)
            and may_be_chained(group[0])
            and may_be_chained(layer)
            and may_follow(group[0], layer)
            and layer not in group  # its second call sees the state of the first
        )
        if joins:
            group.append(layer)
        else:
            groups.append([layer])
    return groups


class _Run(keras.layers.Layer):
    """Layers that are called together where they can be, and one by one where not."""

    def __init__(self, layers: Sequence[Any]):
        first, *others = layers
        name = f"{first.name}_to_{others[-1].name}" if others else f"only_{first.name}"
        # The layers' own conversion of inputs and autocast scope; a single one brings both with it.
        options = {"dtype": first.dtype_policy, "autocast": first.autocast} if others else {"autocast": False}
        super().__init__(name=name, **options)
        self.supports_masking = True  # the mask is the last layer's
        self.built = True
        self._parts = _Parts(layers)

    def compute_mask(self, inputs: Any, previous_mask: Any) -> Any:
        return None

    def compute_output_spec(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        for layer in self._parts.layers:
            inputs = layer.compute_output_spec(inputs)
        return inputs

    def call(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        chain, mode = self._parts.chained(training, mask)
        return one_by_one(self._parts.layers, inputs) if chain is None else chain(inputs, mode)


class _Parts:
    """The layers of a run, out of Keras' sight."""

    def __init__(self, layers: Sequence[Any]):
        self.layers = tuple(layers)
        self._chain: Chain | None = None

    def chained(self, training: Any, mask: Any) -> tuple[Chain | None, bool]:
        """Returns the layers as one and the mode to call them in; None where they must be called one by one."""
        if len(self.layers) == 1 or any(m is not None for m in keras.tree.flatten(mask)):
            return None, False
        if keras.distribution.distribution() is not None or not all(map(may_be_chained, self.layers)):
            return None, False
        flag = self.layers[0]._training_flag(training)
        if not isinstance(flag, bool):
            return None, False
        if self._chain is None:
            self._chain = Chain(self.layers)
        return self._chain, flag
