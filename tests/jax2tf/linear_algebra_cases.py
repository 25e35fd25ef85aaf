"""Functions of linear algebra, a line per function, and how close TensorFlow must come to JAX.

JAX runs LAPACK, TensorFlow the portable rules: other algorithms, so a difference is rounding times the condition of the
problem, which is at most some tens for these matrices. Decompositions are unique up to signs, so what is compared does not
depend on them.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.scipy.linalg as sl
import numpy as np
from jax import lax

N = 4


class Row(NamedTuple):
    """A function of a batch of matrices [b, 4, 4], and the largest difference, relative to the largest value."""

    fn: Callable[..., Any]
    values: float = 2e-6
    gradients: float | None = 2e-5


def spd(a):
    """Symmetric and positive definite, with distinct eigenvalues."""
    return a @ jnp.swapaxes(a, -1, -2) + jnp.diag(jnp.arange(1.0, N + 1, dtype=a.dtype))


def rhs(a):
    return a[..., :2] + 1


def each(fn):
    return jax.vmap(fn)


def svd_product(a):
    u, s, vt = jnp.linalg.svd(a[..., :3], full_matrices=False)
    return (u * jnp.sqrt(s)[..., None, :]) @ vt


def eigh_function(a):
    w, v = jnp.linalg.eigh(spd(a))
    return (v * jnp.log(w)[..., None, :]) @ jnp.swapaxes(v, -1, -2)


def tridiagonal(a):
    # A zero on the diagonal: it needs pivoting.
    return lax.linalg.tridiagonal_solve(a[..., 0, :], a[..., 1, :].at[..., 0].set(0), a[..., 2, :] + 3, rhs(a))


def log_density(a):
    return each(lambda m: jax.scipy.stats.multivariate_normal.logpdf(m[0], m[1], spd(m)))(a)


ROWS = {
    "inv": Row(jnp.linalg.inv),
    "solve": Row(lambda a: jnp.linalg.solve(a, rhs(a))),
    "det": Row(jnp.linalg.det),
    "slogdet": Row(lambda a: jnp.linalg.slogdet(a)),
    "cholesky": Row(lambda a: jnp.linalg.cholesky(spd(a))),
    "cho_solve": Row(lambda a: sl.cho_solve((jnp.linalg.cholesky(spd(a)), True), rhs(a))),
    "qr": Row(lambda a: (jnp.abs(jnp.linalg.qr(a)[0]), jnp.abs(jnp.linalg.qr(a)[1]))),
    "eigh": Row(eigh_function),
    "eigvalsh": Row(lambda a: jnp.linalg.eigvalsh(spd(a))),
    "svd": Row(svd_product),
    "lu": Row(each(lambda m: sl.lu(m))),
    "lu_solve": Row(each(lambda m: sl.lu_solve(sl.lu_factor(m), rhs(m)))),
    "expm": Row(each(sl.expm)),
    "lstsq": Row(each(lambda m: jnp.linalg.lstsq(m[:, :2], m[:, 2:])[0]), gradients=1e-4),
    # The gradient of pinv is a difference of nearly equal terms.
    "pinv": Row(lambda a: jnp.linalg.pinv(a[..., :3]), values=5e-6, gradients=2e-4),
    "matrix_rank": Row(lambda a: jnp.linalg.matrix_rank(a.at[..., 0].set(a[..., 1])), gradients=None),
    "triangular_solve": Row(lambda a: sl.solve_triangular(spd(a), rhs(a), lower=True)),
    "tridiagonal_solve": Row(tridiagonal, gradients=1e-4),
    "multivariate_normal": Row(log_density),
}


def matrices(batch: int, dtype: str = "float32") -> np.ndarray:
    """Well-conditioned matrices: orthogonal ones, changed a little."""
    rng = np.random.default_rng(batch)
    q = np.linalg.qr(rng.normal(size=(batch, N, N)))[0]
    made = q * np.linspace(1, 2, N) + 0.1 * rng.normal(size=(batch, N, N))
    return (made + 0.3j * rng.normal(size=made.shape) if np.dtype(dtype).kind == "c" else made).astype(dtype)


def loss(outs: Any) -> Any:
    """A scalar that depends on every float that a function returns."""
    return sum(jnp.sum(jnp.sin(o)) for o in jax.tree.leaves(outs) if jnp.issubdtype(o.dtype, jnp.floating))


def difference(got: Any, want: Any) -> float:
    """Returns the largest difference, relative to the largest value."""
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape and got.dtype == want.dtype and np.isfinite(want).all()
    return float(np.abs(got - want).max() / np.abs(want).max())
