"""What a file may name of the known libraries in Keras' safe mode. Data; what is not here is given as `custom_objects`.

Called with whatever a file says, and in whatever order, none of it can read or write a file, run a program, import a module or
call back into Python. Module classes of these libraries are not listed: their adapters know them.
"""

from __future__ import annotations

_ACTIVATIONS = """
celu elu gelu glu hard_sigmoid hard_silu hard_swish hard_tanh identity leaky_relu log_sigmoid log_softmax logmeanexp logsumexp
mish normalize one_hot relu relu6 selu sigmoid silu soft_sign softmax softplus sparse_plus sparse_sigmoid squareplus
standardize swish tanh dot_product_attention scaled_dot_general scaled_matmul log1mexp
"""

_INITIALIZERS = """
constant delta_orthogonal glorot_normal glorot_uniform he_normal he_uniform kaiming_normal kaiming_uniform lecun_normal
lecun_uniform normal ones orthogonal truncated_normal uniform variance_scaling xavier_normal xavier_uniform zeros ones_init
zeros_init
"""

#: Elementwise functions, reductions, products, and those that only arrange what they are given.
_ARRAYS = """
abs absolute acos acosh add all amax amin angle any arccos arccosh arcsin arcsinh arctan arctan2 arctanh argmax argmin argsort
around asin asinh atan atan2 atanh average bitwise_and bitwise_not bitwise_or bitwise_xor cbrt ceil clip concat concatenate
conj conjugate copysign cos cosh cross cumprod cumsum deg2rad degrees diagonal divide dot einsum equal exp exp2 expand_dims
expm1 fabs flip fliplr flipud float_power floor floor_divide fmax fmin fmod greater greater_equal heaviside hypot imag inner
invert isfinite isinf isnan less less_equal log log10 log1p log2 logaddexp logaddexp2 logical_and logical_not logical_or
logical_xor matmul matrix_transpose max maximum mean median min minimum mod moveaxis multiply nan_to_num nanmax nanmean nanmin
nansum negative not_equal outer permute_dims positive pow power prod ptp rad2deg radians ravel real reciprocal remainder
reshape rint roll rollaxis rot90 round sign sin sinc sinh sort sqrt square squeeze stack std subtract sum swapaxes tan tanh
tensordot trace transpose tril triu true_divide trunc var vdot vecdot where
"""

_PRIMITIVES = """
Precision DotAlgorithmPreset GatherScatterMode RoundingMethod AccuracyMode
abs acos acosh add asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil clamp concatenate conv conv_general_dilated
conv_transpose conv_with_general_padding cos cosh cumlogsumexp cummax cummin cumprod cumsum digamma div dot dot_general eq erf
erf_inv erfc exp exp2 expm1 floor ge gt integer_pow is_finite le lgamma log log1p logistic lt max min mul ne neg pow
ragged_dot real reciprocal rem round rsqrt select sign sin sinh sort sqrt square squeeze stop_gradient sub tan tanh top_k
transpose all_gather pmax pmean pmin psum
"""

_DRAWS = """
ball bernoulli beta bits categorical cauchy dirichlet double_sided_maxwell exponential gamma generalized_normal gumbel laplace
loggamma logistic lognormal maxwell normal orthogonal pareto permutation poisson rademacher randint rayleigh t
truncated_normal uniform weibull_min
"""

#: Public namespace -> the functions, enumerations and types of Variables in it that a file may name. `__module__` of most is
#: a private module, so that a namespace is the only name which lasts; earlier ones are preferred when files are written.
NAMES: dict[str, frozenset[str]] = {
    namespace: frozenset(names.split())
    for namespace, names in {
        "jax.nn": _ACTIVATIONS,
        "jax.nn.initializers": _INITIALIZERS,
        "jax.numpy": _ARRAYS,
        "jax.lax": _PRIMITIVES,
        "jax.random": _DRAWS,
        "flax.linen": _ACTIVATIONS
        + "avg_pool combine_masks dot_product_attention_weights make_attention_mask make_causal_mask max_pool ones zeros "
        "ones_init zeros_init",
        "flax.linen.initializers": _INITIALIZERS,
        "flax.nnx": _ACTIVATIONS
        + "avg_pool combine_masks make_attention_mask make_causal_mask max_pool min_pool BatchStat Cache Intermediate "
        "LoRAParam OptState OptVariable Param Perturbation RngCount RngKey RngState Variable",
        "haiku": "avg_pool dropout max_pool multinomial one_hot",
        "haiku.initializers": "",
        "haiku.nets": "",
        "equinox": "",
        "equinox.nn": "",
    }.items()
}

#: Public namespaces that files are written with besides: what is found there needs `custom_objects` in safe mode.
MORE_NAMESPACES = ("jax", "numpy")

#: Keras' own classes that may stand inside a config, by their public module; None for every class in it.
KERAS_CLASSES: dict[str, frozenset[str] | None] = {
    "keras": frozenset({"DTypePolicy", "FloatDTypePolicy"}),
    "keras.initializers": None,
    "keras.regularizers": None,
    "keras.constraints": None,
    "keras.dtype_policies": None,
}

#: Roots of libraries whose functions are no user's own, wherever they are installed.
LIBRARIES = ("jaxbridge", "jax", "jaxlib", "flax", "haiku", "equinox", "keras", "tensorflow", "numpy")

#: Implementations of random keys -> how many words of uint32 a key has.
KEY_WORDS = {"threefry2x32": 2, "rbg": 4, "unsafe_rbg": 4}
