"""The two-sided kernel exp(-a |t - s|): two one-sided groups, one for each direction."""

from eigenclock.encodings.base import Encoding, TwoSided


def two_sided(encoding: Encoding) -> Encoding:
    """See later keys through the mirrored group: score(t, s) = q^T exp(|t - s| L_decay) exp((t - s) L_turn) k.

    |t - s| is no exponential polynomial, so this is not one group: it is two, each on its own side of the diagonal. Rotations keep
    the sign of the lag, decays and linear biases see its size. It is what an encoder (``causal=False``) can use of a decay or ALiBi.

    Source: the symmetric variant of Press et al. (ALiBi), 2108.12409, as kernels implement it.

    >>> from eigenclock.encodings.alibi import alibi
    >>> print(two_sided(alibi(64, heads=8)))
    two_sided(alibi(head_dim=64, heads=8))
    """
    return TwoSided(encoding)
