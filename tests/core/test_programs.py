"""Functions that equal layers share."""

import gc
import weakref

import jax

from jaxbridge.core.programs import Program, ProgramCache


def test_equal_keys_share_a_program_and_no_key_shares_none():
    cache = ProgramCache()
    assert cache.get("a", lambda: len) is cache.get("a", lambda: max)
    assert cache.get("a", lambda: len) is not cache.get("b", lambda: len)
    assert cache.get(None, lambda: len) is not cache.get(None, lambda: len)


def test_a_program_makes_a_thing_once_per_setting_of_jax():
    program = Program(len)
    made = []
    make = lambda: made.append(1) or len(made)
    assert [program.once("k", make), program.once("k", make)] == [1, 1]
    with jax.default_matmul_precision("float32"):
        assert program.once("k", make) == 2
    assert program.once("k", make) == 1


def test_programs_outlive_their_layers_only_while_they_are_recent():
    cache = ProgramCache(kept=2)

    def add(name):
        program = cache.get(name, lambda: lambda: name)
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
    used = cache.get("used", lambda: len)
    cache.get("other", lambda: max)
    assert cache.get("used", lambda: min) is used
