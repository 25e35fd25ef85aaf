"""Functions that equal layers share."""

import gc
import weakref

import jax
import pytest

from jaxbridge.core import programs
from jaxbridge.core._jax_private import trace_context
from jaxbridge.core.programs import Program, ProgramCache


def test_equal_keys_share_a_program_and_no_key_shares_none():
    cache = ProgramCache()
    assert cache.get("a") is cache.get("a")
    assert cache.get("a") is not cache.get("b")
    assert cache.get(None) is not cache.get(None)


def test_a_program_makes_a_thing_once_per_setting_of_jax():
    program = Program()
    made = []
    make = lambda: made.append(1) or len(made)
    assert [program.once("k", make), program.once("k", make)] == [1, 1]
    with jax.default_matmul_precision("float32"):
        assert program.once("k", make) == 2
    assert program.once("k", make) == 1


SETTINGS = {
    "x64": lambda: jax.enable_x64(True),
    "matmul precision": lambda: jax.default_matmul_precision("highest"),
    "prng": lambda: jax.default_prng_impl("rbg"),
    "rank promotion": lambda: jax.numpy_rank_promotion("raise"),
    "no jit": jax.disable_jit,
    "mesh": lambda: jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((2,), ("x",))),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_the_context_of_a_trace_follows_the_settings(name):
    before = trace_context()
    assert hash(before) == hash(trace_context()) and before == trace_context()
    with SETTINGS[name]():
        assert before != trace_context()
    assert before == trace_context()


def test_only_the_last_things_made_are_kept(monkeypatch):
    monkeypatch.setattr(programs, "MADE_KEPT", 2)
    program, made = Program(), []
    for key in ("a", "b", "a", "c", "a", "b"):
        program.once(key, lambda key=key: made.append(key))
    assert made == ["a", "b", "c", "b"]


def test_programs_outlive_their_layers_only_while_they_are_recent():
    cache = ProgramCache(kept=2)

    def add(name):
        program = cache.get(name)
        program.offer(program, lambda: name)
        program.once("made of it", lambda: program.fn)  # a reference back, as conversions have
        return weakref.ref(program)

    first = add("first")
    gc.collect()
    assert first() is not None, "a rebuilt model could not reuse it"
    add("second"), add("third")
    gc.collect()
    assert first() is None, "it leaks"


def test_a_program_in_use_is_kept_however_old_it_is():
    cache = ProgramCache(kept=1)
    used = cache.get("used")
    cache.get("other")
    assert cache.get("used") is used


class Owner:
    pass


def test_a_program_runs_a_function_that_has_not_changed():
    program, first, second, changed = Program(), Owner(), Owner(), set()
    program.offer(first, lambda: "first", lambda: "first" not in changed)
    program.offer(second, lambda: "second", lambda: "second" not in changed)
    assert program.fn() == "second"
    changed.add("second")
    assert program.fn() == "first"
    changed.add("first")
    assert program.fn() == "second", "nobody else has one: it is as with `jax.jit`"
    changed.clear()
    del second
    gc.collect()
    changed.add("second")
    assert program.fn() == "first"
