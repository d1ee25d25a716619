"""A real Jordan basis from clusters of eigenvalues and the orders of their blocks."""

import math
from dataclasses import dataclass

import numpy as np

from eigenclock.theory.jordan_numerics import Array, Cluster, Staircase


@dataclass(frozen=True)
class Part:
    """One eigenvalue of a reading: its cluster, its blocks, and the value that the reading gives it."""

    cluster: Cluster
    stairs: Staircase
    value: complex


def chains(stairs: Staircase) -> list[tuple[Array, float]]:
    """Jordan chains of a nilpotent matrix as columns, eigenvector first, longest chain first, each with eta: N z_(k+1) = eta z_k.

    The size eta of the superdiagonal is free; it is chosen so that the vectors of a chain are about equally long.
    """
    N, orders = stairs.clean, stairs.orders
    size, longest = N.shape[0], orders[0]
    powers = [np.eye(size, dtype=N.dtype)]
    for _ in range(longest):
        powers.append(N @ powers[-1])
    out: list[tuple[Array, float]] = []
    for order in range(longest, 0, -1):
        wanted = orders.count(order)
        if not wanted:
            continue
        # Tops of chains of this order lie in ker N^order, outside ker N^(order - 1) and outside longer chains.
        kernel, below = (_kernel(powers[k], sum(min(k, m) for m in orders)) for k in (order, order - 1))
        taken = [chain[:, order - 1 : order] for chain, _ in out]
        space = np.linalg.qr(np.concatenate([below, *taken], 1))[0]
        fresh = kernel - space @ (space.conj().T @ kernel)
        for top in np.linalg.svd(fresh)[0][:, :wanted].T:
            steps = [top]
            for _ in range(order - 1):
                steps.append(N @ steps[-1])
            chain = _tightened(N, np.stack(steps[::-1], 1), size - len(orders))
            lengths = np.log(np.maximum(np.linalg.norm(chain, axis=0), 1e-300))
            eta = math.exp((lengths[0] - lengths[-1]) / (order - 1)) if order > 1 else 1.0
            chain = chain * eta ** np.arange(order)
            out.append((chain / np.exp(np.log(np.linalg.norm(chain, axis=0)).mean()), eta))
    return out


def _tightened(N: Array, chain: Array, rank: int) -> Array:
    """The chain again from its eigenvector up, each vector corrected: multiplying down let rounding grow with every step."""
    u, s, vh = np.linalg.svd(N)
    inverse = (vh[:rank].conj().T / s[:rank]) @ u[:, :rank].conj().T
    out, below = [], np.zeros_like(chain[:, 0])
    for z in chain.T:
        z = z + inverse @ (below - N @ z)
        out.append(z)
        below = z
    return np.stack(out, 1)


def _kernel(power: Array, dim: int) -> Array:
    return np.linalg.svd(power)[2][power.shape[0] - dim :].conj().T


def real_basis(parts: list[Part]) -> tuple[Array, Array]:
    """P and J with real entries: complex chains as pairs (Re z, Im z), on which L holds [[-rate, freq], [-freq, -rate]]."""
    columns, blocks = [], []
    for part in parts:
        value = part.value
        cell = np.array([[value.real]]) if part.cluster.real else np.array([[value.real, value.imag], [-value.imag, value.real]])
        for chain, eta in chains(part.stairs):
            z, order = part.cluster.Q @ chain, chain.shape[1]
            columns.append(np.real(z) if part.cluster.real else np.stack([np.real(z), np.imag(z)], -1).reshape(z.shape[0], -1))
            blocks.append(np.kron(np.eye(order), cell) + np.kron(eta * np.eye(order, k=1), np.eye(len(cell))))
    P = np.concatenate(columns, 1)
    J, start = np.zeros_like(P), 0
    for block in blocks:
        J[start : start + len(block), start : start + len(block)] = block
        start += len(block)
    return P, J
