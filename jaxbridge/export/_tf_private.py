"""What reading a SavedModel without loading it needs and has no public name (tried with TensorFlow 2.18 and 2.21).

`tf.saved_model.load` runs whatever custom ops there are and keeps no attributes; the protocol buffers of the files have no
public module. `tests/export/test_private_apis.py` fails when the names below move.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2, trackable_object_graph_pb2

from jaxbridge.errors import ShardingError

_GRAPH_KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"


def nodes(directory: Path, operation: str) -> Iterator[Any]:
    """Yields the nodes of a SavedModel's graph and functions that are of an operation; a ShardingError for a damaged file."""
    model, file = saved_model_pb2.SavedModel(), directory / "saved_model.pb"
    try:
        model.ParseFromString(file.read_bytes())
    except Exception as error:  # protobuf's DecodeError; protobuf is no package of ours
        raise ShardingError(f"{file} is damaged: {error}. Export the model again.") from error
    for graph in (meta.graph_def for meta in model.meta_graphs):
        for body in (*(function.node_def for function in graph.library.function), graph.node):
            yield from (node for node in body if node.op == operation)


def variables(directory: Path) -> dict[str, np.ndarray]:
    """Returns the values of a SavedModel's variables by their names."""
    reader = tf.train.load_checkpoint(str(directory / "variables" / "variables"))
    graph = trackable_object_graph_pb2.TrackableObjectGraph()
    graph.ParseFromString(reader.get_tensor(_GRAPH_KEY))
    found = {}
    for node in graph.nodes:
        for attribute in node.attributes:
            if attribute.name == "VARIABLE_VALUE" and attribute.full_name:
                found[attribute.full_name] = reader.get_tensor(attribute.checkpoint_key)
    return found
