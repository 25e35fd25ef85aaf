"""Linear algebra without LAPACK: which primitives have a portable lowering rule, and the rules that JAX lacks.

On CPU and GPU JAX lowers linear algebra to custom calls into LAPACK and cuSOLVER that jaxlib registers and TensorFlow does
not. JAX also has rules for the same primitives that every XLA understands: those of TPUs, and those of no platform.
They are used where the audit finds a custom call that TensorFlow does not have, and nowhere else.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

#: Primitive -> whose rule is the portable one: JAX's for TPUs, JAX's for platforms without one of their own, or the
#: function of this file. The TPU rule of `lu` is a custom call of TPUs; JAX's rule for `tridiagonal_solve` does not pivot.
PORTABLE_RULES = {
    "cholesky": "default",
    "cholesky_update": "default",
    "eigh": "tpu",
    "geqrf": "default",
    "householder_product": "default",
    "lu": "default",
    "lu_pivots_to_permutation": "default",
    "ormqr": "default",
    "qr": "default",
    "svd": "default",
    "symmetric_product": "default",
    "triangular_solve": "default",
    "tridiagonal_solve": "here",
}

#: Primitive without a portable rule -> what to write instead.
INSTEAD = {
    "eig": "For a symmetric or Hermitian matrix write `jnp.linalg.eigh`; for singular values `jnp.linalg.svd`.",
    "schur": "For a symmetric or Hermitian matrix write `jnp.linalg.eigh`; for `sqrtm` or `funm` of such a matrix apply the "
    "function to its eigenvalues.",
    "hessenberg": "For a symmetric or Hermitian matrix write `jnp.linalg.eigh`.",
    "tridiagonal": "Write `jnp.linalg.eigh` for eigenvalues and eigenvectors.",
    "geqp3": "Write `jnp.linalg.qr` (without pivoting), or `jnp.linalg.svd` to find the rank.",
}


def tridiagonal_solve(dl: Any, d: Any, du: Any, b: Any) -> Any:
    """Solves tridiagonal systems by Gaussian elimination with partial pivoting.

    The method is that of LAPACK's xGTSV (Golub and Van Loan, Matrix Computations, 4th edition, 4.3), which JAX calls on
    CPU: at each step the larger of the two candidate pivots is taken, which fills a second superdiagonal.

    Args:
        dl: lower diagonals, [..., n]; dl[..., 0] is not used.
        d: diagonals, [..., n].
        du: upper diagonals, [..., n]; du[..., n-1] is not used.
        b: right-hand sides, [..., n, k].

    Returns:
        The solutions, [..., n, k]; not finite where a matrix is singular.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxbridge.jax2tf.linear_algebra import tridiagonal_solve
        >>> dl, d, du = jnp.array([0.0, 1.0]), jnp.array([0.0, 0.0]), jnp.array([1.0, 0.0])
        >>> tridiagonal_solve(dl, d, du, jnp.array([[2.0], [3.0]])).ravel().tolist()
        [3.0, 2.0]
    """
    # Plain reshapes of the batch axes: scan runs over the rows, which go to the front.
    dl, d, du = (jnp.moveaxis(diagonal, -1, 0) for diagonal in (dl, d, du))
    b = jnp.moveaxis(b, -2, 0)
    du = jnp.concatenate([du[:-1], jnp.zeros_like(du[:1])])
    zeros = jnp.zeros_like(d[0])

    def eliminate(above: Any, row: Any) -> tuple[Any, Any]:
        diagonal, upper, right = above
        low, own_diagonal, own_upper, own_right = row
        swap = abs(low) > abs(diagonal)
        pick = lambda yes, no: jnp.where(swap.reshape(swap.shape + (1,) * (yes.ndim - swap.ndim)), yes, no)
        pivot, second, third = pick(low, diagonal), pick(own_diagonal, upper), pick(own_upper, zeros)
        pivot_right = pick(own_right, right)
        factor = pick(diagonal, low) / pivot
        rest = (
            pick(upper, own_diagonal) - factor * second,
            pick(zeros, own_upper) - factor * third,
            pick(right, own_right) - factor[..., None] * pivot_right,
        )
        return rest, (pivot, second, third, pivot_right)

    (last, _, last_right), rows = lax.scan(eliminate, (d[0], du[0], b[0]), (dl[1:], d[1:], du[1:], b[1:]))

    def substitute(below: Any, row: Any) -> tuple[Any, Any]:
        first, second = below
        pivot, upper, upper_2, right = row
        x = (right - upper[..., None] * first - upper_2[..., None] * second) / pivot[..., None]
        return (x, first), x

    end = last_right / last[..., None]
    _, solved = lax.scan(substitute, (end, jnp.zeros_like(end)), rows, reverse=True)
    return jnp.moveaxis(jnp.concatenate([solved, end[None]]), 0, -2)


def tridiagonal_solve_rule(dl: jax.Array, d: jax.Array, du: jax.Array, b: jax.Array, **parameters: Any) -> Any:
    """Returns what the primitive `tridiagonal_solve` does, as JAX code; raises for parameters that it does not cover."""
    if any(parameters.values()):
        given = ", ".join(f"{name}={value!r}" for name, value in parameters.items())
        raise NotImplementedError(f"tridiagonal_solve with {given} has no portable rule")
    return tridiagonal_solve(dl, d, du, b)
