"""`jaxbridge.summary` against counts by hand."""

import dataclasses

import keras
import pytest

import jaxbridge
from jaxbridge.errors import LoweringError, ShapeError
from tests.stages import models
from tests.stages.models import struct

B = 6  # rows of the batch

#: What counts native layers.
on_jax = pytest.mark.keras_backends("jax")


@pytest.fixture(scope="module")
def mixed():
    return jaxbridge.summary(models.mixed, batch_size=B)


# layer -> parameters, FLOPs, bytes in use: weights, inputs and outputs, float32
BY_HAND = {
    "dense": (8 * 4 + 4, 2 * B * 8 * 4 + B * 4 + B * 4, 4 * (8 * 4 + 4 + B * 8 + B * 4)),  # bias, relu
    "dropout": (0, 0, 4 * 2 * B * 4),
    "fn": (4 * 16 + 16, 2 * B * 4 * 16 + B * 16, 4 * (4 * 16 + 16 + B * 4 + B * 16)),  # tanh is counted apart
    # (x - mean) * (rsqrt(var + eps) * scale) + bias: 3 per value and 2 (and rsqrt) per feature; then the matmul
    "head": (4 * 16 + 16 * 2 + 2, 3 * B * 16 + 2 * 16 + 2 * B * 16 * 2 + B * 2, None),
}


@on_jax
@pytest.mark.parametrize("layer", BY_HAND)
def test_rows_of_a_mixed_model(mixed, layer: str):
    row = next(row for row in mixed.rows if row.layer == layer)
    parameters, flops, peak = BY_HAND[layer]
    assert (row.parameters, row.flops) == (parameters, flops)
    assert peak is None or row.peak_memory == peak
    assert row.calls == 1 and row.bytes_accessed > 0


@on_jax
def test_total(mixed):
    assert mixed.total.parameters == sum(row.parameters for row in mixed.rows)
    assert mixed.total.flops == sum(row.flops for row in mixed.rows)
    lowered = jaxbridge.lower(models.mixed, struct(B, 8))
    assert mixed.total.flops == lowered.cost_analysis()["flops"]
    assert mixed.total.peak_memory == lowered.compile().memory_analysis().allocated_size_in_bytes


@on_jax
def test_bytes_of_a_matrix_product(mixed):
    row = jaxbridge.summary(lambda: keras.layers.Dense(4, use_bias=False), struct(B, 8)).total
    assert row.bytes_accessed == 4 * (B * 8 + 8 * 4 + B * 4)


@on_jax
def test_shared_and_nested_layers():
    found = jaxbridge.summary(models.nested(), batch_size=B)
    rows = {row.layer: row for row in found.rows}
    assert list(rows) == ["shared", "inner/deep"]
    assert (rows["shared"].calls, rows["shared"].parameters) == (2, 64)
    assert rows["shared"].flops == 2 * (2 * B * 8 * 8)
    assert found.total.flops == rows["shared"].flops + rows["inner/deep"].flops + B * 8  # the addition between layers
    assert "shared (2 calls)" in str(found)


@on_jax
def test_training_costs_more_than_inference():
    found = jaxbridge.summary(models.mixed, training=True, batch_size=B)
    assert next(row for row in found.rows if row.layer == "dropout").flops > 0
    assert "training mode" in str(found)


def test_a_single_layer_without_weights_made():
    layer = jaxbridge.JaxLayer(models.call, models.init, name="net")
    found = jaxbridge.summary(layer, struct(B, 8))
    assert found.rows == (found.total,) and found.total.parameters == 8 * 16 + 16
    assert found.total.flops == 2 * B * 8 * 16 + B * 16 and not layer.built


@on_jax
def test_the_model_is_left_as_it_was():
    model = models.nested()
    before = {layer: dict(vars(layer)).keys() for layer in model.layers}
    jaxbridge.summary(model)
    assert {layer: dict(vars(layer)).keys() for layer in model.layers} == before


@on_jax
def test_the_table(mixed):
    title, _, header, *lines = str(mixed).splitlines()
    assert title == f"Sequential 'mixed' on float32[{B}, 8], inference"
    assert header.split() == ["layer", "type", "output", "parameters", "FLOPs", "bytes", "peak"]
    dense = next(line for line in lines if line.startswith("dense"))
    assert dense.split()[:6] == ["dense", "Dense", f"float32[{B},", "4]", "36", "432"]


@on_jax
def test_the_table_of_rich(mixed):
    from rich.console import Console

    console = Console(width=120)
    with console.capture() as capture:
        console.print(mixed)
    text = capture.get()
    assert all(row.layer in text and row.type in text for row in (*mixed.rows, mixed.total))


@on_jax
def test_what_is_not_given_is_not_made_up(mixed):
    row = dataclasses.replace(mixed.total, flops=None, bytes_accessed=None, peak_memory=None)
    assert str(dataclasses.replace(mixed, rows=(), total=row)).splitlines()[-1].split()[-3:] == ["-", "-", "-"]


@on_jax
def test_unknown_sizes_of_a_model():
    sequence = keras.Sequential([keras.Input((None, 8)), keras.layers.Dense(2)])
    with pytest.raises(ShapeError, match=r"float32\[1, size_1, 8\]|float32\[1, None, 8\]"):
        jaxbridge.summary(sequence)
    assert jaxbridge.summary(sequence, struct(2, 5, 8)).rows[0].flops == 2 * 2 * 5 * 8 * 2 + 2 * 5 * 2


def test_inputs_that_nobody_says():
    with pytest.raises(LoweringError, match="Nothing says what"):
        jaxbridge.summary(keras.Sequential([keras.layers.Dense(2)]))
