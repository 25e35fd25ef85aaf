"""`layout_map_scope`: layouts of a LayoutMap by the names of attributes and layers, when the names are final."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import inspect
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import keras

from jaxbridge import backends
from jaxbridge.distribution import _keras_private
from jaxbridge.distribution.layouts import (
    Decision,
    NamesLayouts,
    decide,
    named_layout,
    remember,
    same_devices,
    warn_without_effect,
)
from jaxbridge.distribution.matching import Match, one_key
from jaxbridge.distribution.object_paths import ObjectPaths, own_attributes, own_variables, path_in, subtree
from jaxbridge.errors import ShardingError


@contextlib.contextmanager
def layout_map_scope(layout_map: keras.distribution.LayoutMap) -> Iterator[None]:
    """Returns a context in which layers are made whose variables get the layouts of a map, by the names of objects.

    What `tf.keras.dtensor.experimental.layout_map_scope` was, for Keras 3 on the JAX backend. The variables may be made in
    the context or later: at the first call, or by `fit`. Layers of Keras and of this package, in subclassed, Functional and
    Sequential models.

    A variable is known by the attributes that lead to it from the outermost model (`d1.kernel`, `blocks.0.d1.kernel`), in
    Functional and Sequential models by the name of its layer (`d1.kernel`), and by its Keras path
    (`my_model/dense/kernel`). Keys are such names, with dots or slashes, or regular expressions as the installed Keras reads
    them. What no key matches goes by the `keras.distribution` in effect, if there is one, else by the annotation of its
    module, else it is replicated over the map's mesh.

    Args:
        layout_map: a `keras.distribution.LayoutMap` with a mesh.

    Raises:
        ShardingError: the map has no mesh, or one on other devices than the distribution in effect; where a variable is
            made: several keys match it, or a layout does not fit.

    Example:
        >>> import keras
        >>> from jaxbridge.distribution import layout_map_scope
        >>> mesh = keras.distribution.DeviceMesh((1,), ["model"], devices=["cpu:0"])
        >>> layout_map = keras.distribution.LayoutMap(mesh)
        >>> layout_map["d1.kernel"] = (None, "model")
        >>> with layout_map_scope(layout_map):
        ...     model = keras.Sequential([keras.layers.Dense(4, name="d1")])
        >>> model.build((None, 3))
    """
    if not backends.current().distributes:
        warn_without_effect("layout_map_scope")
        yield
        return
    if layout_map.device_mesh is None:
        raise ShardingError("The LayoutMap has no mesh. Write keras.distribution.LayoutMap(device_mesh).")
    scope = _Scope(layout_map)
    with scope.entered():
        yield
        scope.settle(scope.layers())


_current: contextvars.ContextVar[_Scope | None] = contextvars.ContextVar("layout_map_scope", default=None)


class _Scope:
    """The layers that were made in a context, and how their variables are laid out."""

    def __init__(self, layout_map: keras.distribution.LayoutMap):
        own_attributes()  # models are made for it, which must not join the scope
        self.layout_map = layout_map
        self._layers: list[weakref.ref[keras.layers.Layer]] = []
        #: The layers that are being built, from the outside in, each with what stands before its variables' names.
        self._building: list[tuple[keras.layers.Layer, list[str]]] = []

    def layers(self) -> list[keras.layers.Layer]:
        """Returns the layers that are still there."""
        return [layer for reference in self._layers if (layer := reference()) is not None]

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Returns a context in which new layers belong to the scope, and new variables ask it for their layouts."""
        outer = keras.distribution.distribution()
        if isinstance(outer, ScopedLayouts):
            outer = outer.outer
        token = _current.set(self)
        try:
            with _new_layers_are_seen(), ScopedLayouts(self, outer).scope():
                yield
        finally:
            _current.reset(token)

    def adopt(self, layer: keras.layers.Layer) -> None:
        """Takes a new layer into the scope: it will be built in it, whenever that is."""
        self._layers.append(weakref.ref(layer))
        build = layer.build

        @functools.wraps(build)
        def build_in_scope(*args: Any, **kwargs: Any) -> None:
            with self.entered():
                self._building.append((layer, ObjectPaths(self.layers()).prefixes(layer)))
                try:
                    build(*args, **kwargs)
                finally:
                    self._building.pop()
                self.settle(subtree(layer))

        layer.build = build_in_scope

    def settle(self, layers: Sequence[keras.layers.Layer]) -> None:
        """Lays out the variables of layers by the names that were not known when they were made.

        A variable is an attribute only after it was made, and a layer of a list may be one only after it was built. Those
        that Keras initialises later, at the end of a symbolic call, have no layout before this.
        """
        paths = ObjectPaths(self.layers())
        for layer in layers:
            own = own_variables(layer)
            prefixes = paths.prefixes(layer) if own else []
            for variable, names in own:
                match = self.match(variable.path, _joined(prefixes, names))
                has_layout = _keras_private.assigned_layout(variable) is not None
                if match is None and has_layout:
                    continue
                decision = decide(variable.path, variable.shape, match=match)
                remember(variable, decision)
                if not has_layout or _keras_private.assigned_layout(variable) != decision.layout:
                    with backends.current().build_scope():
                        _keras_private.assign_layout(variable, decision.layout)

    def match(self, path: str, names: Sequence[str] | None = None) -> Match | None:
        """Returns the layout of a variable by its path and its names (None: those it has where it is being built)."""
        if names is None:
            layer, prefixes = self._building[-1] if self._building else (None, [])
            below = None if layer is None else path_in(layer, path)
            names = [] if below is None else _joined(prefixes, [below])
        spellings = [spelling for name in (path, *names) for spelling in (name, name.replace("/", "."))]
        key = one_key(self.layout_map, path, spellings)
        return None if key is None else Match(self.layout_map[key], "scope", key)


def _joined(prefixes: Sequence[str], names: Sequence[str]) -> list[str]:
    return [f"{prefix}/{name}" if prefix else name for prefix in prefixes for name in names]


class ScopedLayouts(NamesLayouts, keras.distribution.ModelParallel):
    """The distribution in effect in a scope: variables by the scope, everything else by the distribution around it."""

    def __init__(self, scope: _Scope, outer: Any):
        if outer is not None and not same_devices(outer.device_mesh, scope.layout_map.device_mesh):
            raise ShardingError(
                f"The LayoutMap of the scope has {scope.layout_map.device_mesh}, and the distribution in effect "
                f"{outer.device_mesh} on other devices. One step runs on one set of devices: use one mesh for both."
            )
        # Without one around it data are replicated, which suits every batch size, and nobody's dataset is cut.
        super().__init__(layout_map=scope.layout_map, auto_shard_dataset=outer is not None and outer.auto_shard_dataset)
        self._scope, self.outer = scope, outer

    def named_layout(self, path: str, shape: Sequence[int]) -> Match | None:
        match = self._scope.match(path)
        return match if match is not None or self.outer is None else named_layout(self.outer, path, shape)

    def get_variable_layout(self, variable: Any) -> Any:
        layout = _keras_private.assigned_layout(variable)
        if layout is not None:
            return layout
        decision: Decision = decide(variable.path, variable.shape)
        remember(variable, decision)
        return decision.layout

    def get_tensor_layout(self, path: str) -> Any:
        match = self._scope.match(path)
        if match is not None:
            return match.layout
        return None if self.outer is None else self.outer.get_tensor_layout(path)

    def get_data_layout(self, data_shape: Sequence[int]) -> Any:
        if self.outer is not None:
            return self.outer.get_data_layout(data_shape)
        return keras.distribution.TensorLayout([None] * len(data_shape), self.device_mesh)

    def distribute_dataset(self, dataset: Any) -> Any:
        return dataset if self.outer is None else self.outer.distribute_dataset(dataset)


_lock = threading.RLock()
_depth = 0
_layer_init: Any = None


@contextlib.contextmanager
def _new_layers_are_seen() -> Iterator[None]:
    """Returns a context in which layers that are made join the scope of their thread; Keras has no hook for it."""
    global _depth, _layer_init
    with _lock:
        if _depth == 0:
            _layer_init = keras.layers.Layer.__init__
            keras.layers.Layer.__init__ = _seen(_layer_init)
        _depth += 1
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if _depth == 0:
                keras.layers.Layer.__init__ = _layer_init


def _seen(init: Any) -> Any:
    @functools.wraps(init)
    def init_and_join(self: keras.layers.Layer, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        scope = _current.get()
        if scope is not None:
            scope.adopt(self)

    # Keras reads the arguments by `inspect.getfullargspec`, which does not look behind a wrapper.
    init_and_join.__signature__ = inspect.signature(init)  # pyright: ignore[reportFunctionMemberAccess]
    return init_and_join
