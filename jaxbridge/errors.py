"""The exceptions of jaxbridge. Each also is the built-in exception that Keras or JAX raises for the same mistake."""

from __future__ import annotations


class JaxBridgeError(Exception):
    """Base of every error that jaxbridge raises on purpose."""


class SignatureError(JaxBridgeError, TypeError, ValueError):
    """An argument of a public function, or of a function given to one, is not what the contract says."""


class StructureError(JaxBridgeError, ValueError):
    """A pytree (params, state, outputs, shapes) does not have the structure, shapes or dtypes that it must have."""


class ShapeError(JaxBridgeError, ValueError):
    """A size breaks a declared shape or constraint, or a shape cannot be found."""


class DifferentiationError(JaxBridgeError, ValueError, LookupError):
    """A gradient was asked of a function that JAX cannot differentiate in reverse mode."""


class ConversionError(JaxBridgeError, ValueError):
    """A JAX function cannot be made into a TensorFlow one."""


class UnsupportedOperationError(ConversionError, NotImplementedError):
    """A JAX function holds an operation that TensorFlow cannot run: a callback, a custom call, more than one device."""


class ExportError(JaxBridgeError, ValueError):
    """A model cannot be exported, or what was exported does not give what the model gives."""


class ShardingError(JaxBridgeError, ValueError):
    """A sharding cannot be laid over a mesh: an axis is missing, a size is not divisible, keys overlap, devices are few."""


class PartitionerError(ShardingError, RuntimeError):
    """The partitioner of JAX that knows names of axes is switched off."""


class LostVariablesError(JaxBridgeError, RuntimeError):
    """Variables have no values any more: a training step that failed had been given their buffers."""


class MissingDependencyError(JaxBridgeError, ImportError):
    """An optional package is needed and not installed."""


class UnsupportedBackendError(JaxBridgeError, ValueError):
    """The Keras backend in use has no file in `jaxbridge/backends`."""


class LoweringError(JaxBridgeError, ValueError):
    """A layer or model cannot be lowered or compiled, or not for what was asked."""
