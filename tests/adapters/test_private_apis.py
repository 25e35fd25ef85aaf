"""What `adapters/_haiku_private.py` relies on."""

import haiku as hk
import pytest

from jaxbridge.adapters._haiku_private import original_function


@pytest.mark.parametrize("transform", [hk.transform, hk.transform_with_state])
def test_the_transformed_function_is_found(transform):
    def function(x, is_training):
        return x

    assert original_function(transform(function).apply) is function
