"""Several processes that train one model: starting them, and saving what no single one of them holds."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import keras

from jaxbridge import backends
from jaxbridge.distribution._keras_private import with_values
from jaxbridge.errors import ShardingError


def initialize(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    seed: int | None = None,
    timeout: int = 300,
    heartbeat_timeout: int = 100,
) -> None:
    """Joins this process to the others, before anything is computed. In place of `keras.distribution.initialize`, which has
    no time limits to set.

    A process that does not come within `timeout` ends those that wait for it; one that dies or stops ends the others within
    about twice `heartbeat_timeout`. JAX ends them where they are (SIGABRT, with its reason on stderr), since the operations
    that wait for the lost one cannot be interrupted: restart all of them from the last checkpoint.

    Args:
        coordinator_address: host and port of process 0, such as "10.0.0.1:1234"; None where JAX finds it (TPU, Slurm).
        num_processes: the number of processes; None as above.
        process_id: the number of this one, from 0; None as above.
        seed: Keras' global seed, the same for all; None: process 0 draws one.
        timeout: seconds to wait for the other processes.
        heartbeat_timeout: seconds without a sign of life after which a process counts as dead.

    Raises:
        UnsupportedBackendError: Keras' backend is not JAX.
        ShardingError: an argument is out of range.
        RuntimeError: JAX has computed something already, or is initialized.
    """
    for name, value in (("timeout", timeout), ("heartbeat_timeout", heartbeat_timeout)):
        if not isinstance(value, int) or value < 1:
            raise ShardingError(f"`{name}` must be a whole number of seconds of at least 1, got {value!r}.")
    backend = backends.current()
    backend.join_processes(coordinator_address, num_processes, process_id, timeout, heartbeat_timeout)
    keras.utils.set_random_seed(backend.common_seed() if seed is None else seed)


@contextlib.contextmanager
def gathered(model: keras.Model) -> Iterator[None]:
    """Returns a context in which every variable of a model has its whole value on this host, and no distribution is set.

    Every process must enter it: the values are gathered then. Inside, nothing needs the other processes, so that one of
    them can save or export the model alone. The variables themselves stay as they are.

    Args:
        model: a built model; the variables of its optimizer and metrics are gathered too.

    Example:
        >>> import keras, tempfile
        >>> from jaxbridge.distribution import gathered
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        >>> with gathered(model):
        ...     model.save_weights(tempfile.mkdtemp() + "/model.weights.h5")  # in process 0 alone, where there are several
    """
    optimizer = getattr(model, "optimizer", None)
    variables = [*model.variables, *(() if optimizer is None else optimizer.variables)]
    variables += getattr(model, "metrics_variables", [])
    fetch = backends.current().host_value
    values = [(variable, fetch(variable.value)) for variable in {id(v): v for v in variables}.values()]
    # What is whole here already stays: on TensorFlow a variable's value is the variable.
    values = [(variable, value) for variable, value in values if value is not variable.value]
    before = keras.distribution.distribution()
    keras.distribution.set_distribution(None)
    try:
        with with_values(values):
            yield
    finally:
        keras.distribution.set_distribution(before)
