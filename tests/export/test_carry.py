"""Annotations are carried by files: written in this process, which has one device, read and executed in one with 8."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
import tensorflow as tf

from jaxbridge import backends, export_saved_model, jax2tf
from tests import carry_cases
from tests.carry_cases import CASES

ROOT = Path(__file__).resolve().parents[2]

#: Sums of float32 that are cut over devices and added up in another order.
ATOL = 2e-5

#: The first of the kinds, the one whose annotations are all by the user, and the control; all kinds are in the slow test.
FAST = ("linen `nn.with_partitioning`", "functions, path patterns, and a bare spec inside", "nothing (control)")


def write(case, folder):
    """Writes the model in every way: by us, by Keras, and loaded and saved again."""
    folder.mkdir()
    (folder / "case.json").write_text(json.dumps({"transposed": case.transposed}))
    model = carry_cases.model(case)
    report = export_saved_model(model, folder / "ours", verify=False)
    if case.name == FAST[0]:
        with pytest.warns(UserWarning, match="sharding constraints.*are left out"):
            export_saved_model(model, folder / "older", target="tensorflow==2.18", verify=False)
    with jax2tf.patch():
        model.export(folder / "keras", verbose=False)
    again = tf.saved_model.load(str(folder / "keras"))
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    tf.saved_model.save(again, str(folder / "keras again"), options=options)
    return report


def read(folder):
    """What a process with 8 devices finds."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.carry_worker", str(folder)],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def results_of(names, folder):
    assert jax.device_count() == 1, "what is shown is that the writer needs no devices"
    np.save(folder / "x.npy", carry_cases.batch())
    chosen = [case for case in CASES if case.name in names]
    reports = {case.name: write(case, folder / str(number)) for number, case in enumerate(chosen)}
    found = read(folder)
    rows = {case.name: (case, reports[case.name], found[str(number)]) for number, case in enumerate(chosen)}
    return {**rows, "conversions": found["conversions"]}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return results_of(FAST, tmp_path_factory.mktemp("carry"))


@pytest.fixture(params=FAST[:-1])
def annotated(request, results):
    return results[request.param]


@pytest.fixture
def control(results):
    return results[FAST[-1]]


def shapes(case, first, second):
    return [list(reversed(shape)) if case.transposed else list(shape) for shape in (first, second)]


def check_carried(case, found):
    """What holds for every kind: the graph of every exporter has the constraints and the record."""
    split = [["", "model"], ["model", ""]] if not case.transposed else [["model", ""], ["", "model"]]
    text = lambda axes: "[" + ", ".join(f'{{"{axis}"}}' if axis else "{}" for axis in axes) + "]"
    wanted = [text(axes) for axes in split] + [text(["data", ""])] * 2 + [text(["data", "model"])] * case.inside
    for exporter in ("ours", "keras", "keras again"):
        graph = found[exporter]["graph"]
        assert graph["params"] == [f"m/net/{path}" for path in case.kernels], exporter
        assert {"data": 2, "model": 4} in graph["meshes"], exporter
        assert graph["constraints"], exporter
        for constraints in graph["constraints"]:
            assert sorted(c.partition("@mesh, ")[2].rstrip(">") for c in constraints) == sorted(wanted), exporter
        assert found[exporter]["read"] == found["ours"]["read"]
    # The gradient of a SavedModel has the transposes of these too.
    assert found["ours"]["graph"]["backward"] >= len(wanted)


def check_runs(case, found):
    """What holds for every kind: on each mesh the arrays are cut as they should be, and the numbers are right."""
    for mesh, row in zip(((2, 4), (4, 2), (1, 1)), found["meshes"], strict=True):
        data, model = mesh
        cut = shapes(case, (4, 16 // model), (16 // model, 8))
        assert row["kernels"] == cut and row["gradients"] == cut, mesh
        assert row["output"] == [8 // data, 8], mesh
        assert f"{8 // data},{16 // model}" in row["dots"], mesh
        assert row["all_reduce"] == (model > 1), mesh
        assert row["error"] < ATOL and row["gradient_error"] < 10 * ATOL, mesh


def test_every_exporter_keeps_them(annotated):
    case, _, found = annotated
    check_carried(case, found)


def test_jax_runs_what_was_written_on_any_mesh(annotated):
    case, _, found = annotated
    check_runs(case, found)


def test_dtensor_variables_are_cut(annotated):
    case, _, found = annotated
    shards = {name.removesuffix(":0"): shape for name, shape in found["dtensors"]["shards"].items()}
    cut = dict(zip((f"m/net/{path}" for path in case.kernels), shapes(case, (4, 4), (4, 8)), strict=True))
    assert found["dtensors"]["same"]
    assert shards == {name: cut.get(name, shape) for name, shape in shards.items()} and cut.keys() <= shards.keys()
    assert [16] in shards.values(), "what nothing is said of is whole"


def test_the_report_says_it(annotated):
    _, report, found = annotated
    assert str(report.sharding) == found["ours"]["read"]
    assert report.jax_functions == (("",) if backends.current().traces_with_jax else ("m/net",))


def test_for_an_older_tensorflow_the_record_stays(results):
    """Its graph could not be read with the constraints."""
    found = results[FAST[0]][2]
    assert found["older"]["graph"]["params"] == found["ours"]["graph"]["params"]
    assert found["older"]["read"] == found["ours"]["read"]
    assert not found["older"]["graph"]["meshes"] and not any(found["older"]["graph"]["constraints"])


def test_without_annotations_nothing_is_cut(control):
    """The control: what is asserted above is not there by itself."""
    _, report, found = control
    for exporter in ("ours", "keras", "keras again"):
        graph = found[exporter]["graph"]
        assert not graph["meshes"] and not graph["constraints"] and not graph["params"]
        assert "says how arrays are split" in found[exporter]["read"]["refused"]
    assert report.sharding is None and report.jax_functions == ()
    assert all("holds no function for JAX" in row["refused"] for row in found["meshes"])


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ("other axes", "'rows', 'model', and the SavedModel was made for 'data', 'model'"),
        ("too few devices", "needs 16 devices, and there are 8"),
        ("indivisible", "axis 1 has size 16, which is not divisible by 3 ('model' of size 3)"),
        ("other layer", "holds no layer 'm/nothing'"),
    ],
)
def test_what_cannot_be_loaded_says_why(results, mistake, message):
    assert message in results[FAST[0]][2]["errors"][mistake]["refused"]


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("jit with in_shardings", ""),
        ("jit with in_shardings, in a graph", ""),
        ("jit with in_shardings, unknown batch", ""),
        ("jit with in_shardings, gradient", ""),
        ("explicit axes", "ShardingError: .*Convert it inside `jax.set_mesh"),
        ("explicit axes, in their mesh", ""),
        ("shard_map", "UnsupportedOperationError: .*runs over the mesh {'data': 2, 'model': 4}"),
        ("shard_map, on another mesh", "ShardingError: .*compiled for the mesh {'data': 2, 'model': 4}"),
        ("DTensor", "UnsupportedOperationError: .*called with DTensors.*for storage"),
    ],
)
def test_functions_that_name_devices(results, function, expected):
    """They are converted and give what they give in JAX, or the error says what to write."""
    found = results["conversions"][function]
    assert re.search(expected, found["refused"]) if expected else found == {"right": True}, found


@pytest.mark.slow
def test_every_kind_of_annotation():
    """Every cell of the matrix, for the backend in use."""
    sys.path.insert(0, str(ROOT / "tools"))
    import sharding_matrix

    lines = (ROOT / "docs" / "sharding_matrix.md").read_text(encoding="utf-8").splitlines()
    for row in sharding_matrix.rows():
        assert f"| {' | '.join(row)} |" in lines
