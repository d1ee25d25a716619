"""What the derivation says, claim by claim, through the public API: the general and the singular solution, blocks, ALiBi, tiles, clocks,
softmax, and the things that look relative and are not."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import softplus

import eigenclock as ec
from eigenclock.theory import (
    Conjugate,
    DampedRotation,
    Decay,
    Dense,
    DirectSum,
    Jordan,
    Lift,
    Product,
    Rotation,
    Sampling,
    by_matrix,
    maps_of,
    measure_axioms,
    realise,
    skew_symmetric,
)

F64 = torch.float64


def t(*values) -> Tensor:
    return torch.tensor(values, dtype=F64)


def rand(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


def rms(x: Tensor) -> Tensor:
    return x / x.square().mean(-1, keepdim=True).sqrt()


def stable(n: int, seed: int = 0) -> Tensor:
    """A matrix without structure, moved so that nothing grows."""
    L = rand(n, n, seed=seed) * 0.3
    return L - torch.linalg.eigvals(L).real.max() * torch.eye(n, dtype=F64)


# --- from the axioms to the group --------------------------------------------------------------------------------------------------


def test_the_general_solution():
    """F(t)^T = F0^T exp(tL), G(s) = exp(-sL) G0: the score sees the lag; A is a group only with A(0)^-1 in between."""
    generator, left, right = Dense(stable(5)), rand(5, 5, seed=1), rand(5, 5, seed=2)
    A = lambda u: left @ generator.matrix(u) @ right  # noqa: E731
    for time in (0.0, 1.3, 4.0):
        for key_time in (-2.0, 0.7, 3.0):
            product = (left @ generator.matrix(time)) @ (generator.matrix(-key_time) @ right)
            torch.testing.assert_close(product, A(time - key_time), rtol=0, atol=1e-10)
    a, b = 0.9, 1.7
    assert (A(a) @ A(b) - A(a + b)).abs().max() > 1e-2 * A(a + b).abs().max()
    torch.testing.assert_close(A(a) @ torch.linalg.inv(A(0.0)) @ A(b), A(a + b), rtol=0, atol=1e-10)
    F, G = maps_of(generator)
    span = 4.0  # F grows as G falls: over longer times their product loses more digits than the limit allows
    assert torch.linalg.cond(generator.matrix(2 * span + 1)) * torch.finfo(F64).eps < 1e-9
    found = measure_axioms(lambda x, s: F(x @ left, s), lambda x, s: G(x @ right.mT, s), 5, Sampling(span=span, causal=True, limit=1e-8))
    assert found.broken == ()


def test_the_singular_case_needs_no_new_functions():
    """C exp(uL) B with C B singular is still of the lag alone; its block Hankel matrix has the rank of L, A(0) a smaller one."""
    generator, half = Dense(stable(4)), torch.diag(t(1.0, 1.0, 0.0, 0.0))
    read_out, read_in = half @ rand(4, 4, seed=1), rand(4, 4, seed=2) @ half
    A = lambda u: read_out @ generator.matrix(u) @ read_in  # noqa: E731
    assert int(torch.linalg.matrix_rank(A(0.0))) == 2
    found = realise(torch.stack([A(float(u)) for u in range(12)]))
    assert found.rank == 4
    for u in (0.5, 3.3, 20.0):  # between and beyond the samples
        torch.testing.assert_close(found.at(u), A(u), rtol=0, atol=1e-9)
    ours = torch.linalg.eigvals(found.L)
    theirs = torch.linalg.eigvals(generator.matrix())
    assert (ours[:, None] - theirs).abs().min(0).values.max() < 1e-8  # the same spectrum, in another basis
    F, G = maps_of(generator)
    measured = measure_axioms(
        lambda x, s: F(x @ read_out, s), lambda x, s: G(x @ read_in.mT, s), 4, Sampling(span=8, causal=True, limit=1e-7)
    )
    assert measured.broken == () and (measured.rank_at_zero, measured.hankel_rank) == (2, 4)


def test_the_pure_linear_bias():
    """A(u) = [[0, u], [0, 0]] has A(0) = 0, and factors through two dimensions."""
    F = by_matrix(lambda s: t([1.0, 0.0], [s, 0.0]))
    G = by_matrix(lambda s: t([0.0, -s], [0.0, 1.0]))
    eye = torch.eye(2, dtype=F64)
    torch.testing.assert_close(F(eye, 7.0) @ G(eye, 2.0).mT, t([0.0, 5.0], [0.0, 0.0]))
    found = measure_axioms(F, G, 2)
    assert found.broken == () and (found.rank_at_zero, found.hankel_rank) == (0, 2)


def test_integer_times_have_room_for_a_sign():
    """B(1) = -1 has no real logarithm; twice it has one, half a turn; and frequencies 2 pi apart are one encoding on integers."""
    sign = by_matrix(lambda n: t([(-1.0) ** n]))
    assert measure_axioms(sign, sign, 1, Sampling(integer=True)).broken == ()
    with pytest.raises(ec.AxiomError):
        realise(torch.stack([t([(-1.0) ** n]) for n in range(4)]))
    half_turn = Rotation(t(math.pi))
    torch.testing.assert_close(half_turn.matrix(1.0), -torch.eye(2, dtype=F64), rtol=0, atol=1e-15)
    a, b = Rotation(t(0.4)), Rotation(t(0.4 + 2 * math.pi))
    times = torch.arange(9, dtype=F64)
    torch.testing.assert_close(a.matrix(times), b.matrix(times), rtol=0, atol=1e-13)
    assert (a.matrix(0.5) - b.matrix(0.5)).abs().max() > 1  # real times tell them apart


def test_what_stands_between_projections_and_encoding_fixes_the_basis():
    """A change of basis of L melts into free W_q and W_k. A norm on queries and keys, tied ones, or shared keys do not let it through."""
    L, P = DampedRotation(t(0.1, 0.3), t(1.0, 0.2)), rand(4, 4) + 2 * torch.eye(4)
    other = Conjugate(L, P)
    q, k, q2 = rand(6, 4, seed=1), rand(6, 4, seed=2), rand(6, 4, seed=3)
    score = lambda of, q, k: torch.einsum("nd,de,ne->n", q, of.matrix(2.0), k)  # noqa: E731
    # Free projections: queries take P^T, keys take P^-1, and the encodings are one.
    to_q, to_k = lambda x: x @ P, lambda x: x @ torch.linalg.inv(P).mT
    torch.testing.assert_close(score(other, q, k), score(L, to_q(q), to_k(k)))
    # A norm in between: absorbing P first and normalising after is something else.
    assert (score(other, rms(q), rms(k)) - score(L, rms(to_q(q)), rms(to_k(k)))).abs().max() > 0.1
    # Tied queries and keys: one matrix must serve as P^T and as P^-1, so only an orthogonal P is free.
    torch.testing.assert_close(score(other, q, q), score(L, to_q(q), to_k(q)))
    assert (score(other, q, q) - score(L, to_q(q), to_q(q))).abs().max() > 0.1
    U = torch.linalg.qr(rand(4, 4, seed=4))[0]
    torch.testing.assert_close(score(Conjugate(L, U), q, q), score(L, q @ U, q @ U))
    # Keys shared by two query heads: two bases ask for two keys.
    first, second = P, rand(4, 4, seed=5) + 2 * torch.eye(4)
    shared = [score(Conjugate(L, B), x, k) for B, x in ((first, q), (second, q2))]
    one_key = [score(L, x @ B, k @ torch.linalg.inv(first).mT) for B, x in ((first, q), (second, q2))]
    torch.testing.assert_close(shared[0], one_key[0])
    assert (shared[1] - one_key[1]).abs().max() > 0.1


def test_a_fixed_phase_is_a_constant_that_a_nonlinearity_keeps():
    """Magnitudes softplus(x) at angles w t: A(0) = R(delta), and no W_q behind a softplus can turn by delta."""
    w, delta = t(1.0, 0.3), t(-0.7, -0.2)
    turned = Rotation(w)

    def planes(x: Tensor) -> Tensor:  # each magnitude as a vector of the plane, along its first axis
        return torch.stack([softplus(x), torch.zeros_like(x)], -1).flatten(-2)

    q, k = rand(5, 2, seed=1), rand(5, 2, seed=2)
    shifted = Rotation(delta).T.act(planes(q), torch.ones(5, dtype=F64))
    score = (turned.T.act(shifted, t(*[9.0] * 5)) * turned.act(planes(k), t(*[-4.0] * 5))).sum(-1)
    written = (softplus(q) * softplus(k) * torch.cos(w * 5.0 + delta)).sum(-1)
    torch.testing.assert_close(score, written)
    # Seen from the planes the law holds with A(0) = R(delta); seen from x the map is not linear, and measured as such.
    F, G = maps_of(turned)
    turned_by_delta = lambda x, s: F(Rotation(delta).T.act(x, torch.ones(1, dtype=F64)), s)  # noqa: E731
    assert measure_axioms(turned_by_delta, G, 4).broken == ()
    from_x = measure_axioms(lambda x, s: turned_by_delta(planes(x), s), lambda x, s: G(planes(x), s), 2)
    assert from_x.broken == ("linearity",) and from_x.group_law.holds is None


# --- Jordan blocks -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize(("alpha", "omega"), [(-0.3, None), (0.0, None), (-0.2, 1.1), (0.0, 0.7)])
def test_the_exponential_of_a_jordan_block(order, alpha, omega):
    """e^(alpha t) sum_r t^r / r! N^r, and the same times a rotation where the eigenvalue is complex."""
    block = Jordan(t(-alpha), order=order, freq=None if omega is None else t(omega))
    shift = torch.diag(torch.ones(order - 1, dtype=F64), 1) if order > 1 else torch.zeros(1, 1, dtype=F64)
    for time in (-1.5, 0.0, 0.4, 3.0):
        closed = sum(time**r / math.factorial(r) * torch.linalg.matrix_power(shift, r) for r in range(order))
        if omega is not None:
            cos, sin = math.cos(omega * time), math.sin(omega * time)
            closed = torch.kron(closed, t([cos, sin], [-sin, cos]))  # exp(-omega t J)
        torch.testing.assert_close(block.matrix(time), math.exp(alpha * time) * closed, rtol=0, atol=1e-12)
        torch.testing.assert_close(block.matrix(time), torch.matrix_exp(time * block.matrix()), rtol=0, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("lag", [1e3, 1e8, 1e13])
def test_a_damped_block_underflows_and_never_overflows(dtype, lag):
    """t^3 leaves float32 at 7e12 and e^(-0.5 t) is 0 long before: their product is 0, not 0 times infinity."""
    block = Jordan(t(0.5, 2.0), order=4, freq=t(1.0, 0.1))
    for which in (block, block.T):
        assert torch.equal(which.act(torch.ones(1, 16, dtype=dtype), t(lag)), torch.zeros(1, 16, dtype=dtype))


@pytest.mark.parametrize("eta", [0.03, 5.0])
@pytest.mark.parametrize("order", [2, 4])
def test_the_superdiagonal_is_a_change_of_basis(order, eta):
    plain, scaled = (Jordan(t(0.2), order=order, freq=t(1.1), eta=e) for e in (None, t(eta)))
    S = torch.kron(torch.diag(eta ** -torch.arange(order, dtype=F64)), torch.eye(2, dtype=F64))
    torch.testing.assert_close(Conjugate(plain, S).matrix(), scaled.matrix(), rtol=0, atol=1e-12)
    torch.testing.assert_close(Conjugate(plain, S).matrix(1.7), scaled.matrix(1.7), rtol=0, atol=1e-9)


def test_the_laguerre_transition_is_one_jordan_block():
    """HiPPO-LagT: -1/2 on the diagonal, -1 below it. The ranks of (A + 1/2)^r fall one by one, and a chain gives the basis."""
    n = 6
    A = -(torch.tril(torch.ones(n, n, dtype=F64), -1) + 0.5 * torch.eye(n, dtype=F64))
    M = A + 0.5 * torch.eye(n, dtype=F64)
    assert [int(torch.linalg.matrix_rank(torch.linalg.matrix_power(M, r))) for r in range(n + 1)] == list(range(n, -1, -1))
    chain = [torch.eye(n, dtype=F64)[:, 0]]
    for _ in range(n - 1):
        chain.insert(0, M @ chain[0])
    block = Conjugate(Jordan(t(0.5), order=n), torch.stack(chain, -1))
    assert str(block.form) == "1D6"
    torch.testing.assert_close(block.matrix(), A, rtol=0, atol=1e-11)
    torch.testing.assert_close(block.matrix(2.0), torch.matrix_exp(2.0 * A), rtol=0, atol=1e-10)
    with pytest.raises(ec.UnsupportedError):  # it has no basis of eigenvectors
        Dense(A).split()


# --- ALiBi -------------------------------------------------------------------------------------------------------------------------


def alibi_case():
    n, d, m = 40, 8, 0.25
    times = (torch.rand(n, dtype=F64, generator=torch.Generator().manual_seed(3)) * 3).cumsum(0)
    return n, d, m, rand(n, d, seed=1), rand(n, d, seed=2), times, torch.ones(n, n, dtype=torch.bool).tril()


def test_two_more_coordinates_give_the_logits_and_one_gives_the_softmax():
    n, d, m, q, k, times, seen = alibi_case()
    ours = ec.scores(q[None, None], k[None, None], ec.alibi(d, heads=1, slopes=m), times=times)[0, 0]
    block = Jordan(t(0.0), order=2)
    more_q = block.T.act(t(-m * math.sqrt(d), 0.0).expand(n, 2), times)
    more_k = block.act(t(0.0, 1.0).expand(n, 2), -times)
    two = torch.cat([q, more_q], 1) @ torch.cat([k, more_k], 1).mT / math.sqrt(d)
    torch.testing.assert_close(ours[seen], two[seen], rtol=0, atol=1e-12)
    one = (q @ k.mT / math.sqrt(d) + m * times).masked_fill(~seen, -math.inf)
    torch.testing.assert_close(ours.softmax(-1), one.softmax(-1), rtol=0, atol=1e-12)
    sink = lambda z: torch.cat([z, torch.zeros(n, 1, dtype=F64)], 1).softmax(-1)[:, :-1]  # noqa: E731
    assert (sink(one) - sink(ours)).abs().max() > 0.1  # with a sink the term that is constant along a row shows
    _, lse = ec.attention(q[None, None], k[None, None], k[None, None], ec.alibi(d, heads=1, slopes=m), times=times, return_lse=True)
    torch.testing.assert_close(lse[0, 0], two.masked_fill(~seen, -math.inf).logsumexp(-1), rtol=0, atol=1e-10)


@pytest.mark.parametrize("backend", ["auto", "reference", "tiled"])
def test_linear_bias_in_16_bits_far_from_the_origin(backend):
    """At a million tokens one bf16 coordinate is off by 30 logits among neighbours; three base-256 digits are not, nor is attention."""
    torch.manual_seed(1)
    m, n, d, last = 0.5, 64, 32, 1_000_000
    bf = lambda x: x.to(torch.bfloat16).float()  # noqa: E731
    q, k = bf(torch.randn(n, d)), bf(torch.randn(n, d))
    times = torch.arange(last - n, last)
    seen = torch.ones(n, n, dtype=torch.bool).tril()
    exact = q.double() @ k.double().mT - m * (times[:, None] - times).double()

    def worst(more_q: Tensor, more_k: Tensor) -> float:
        z = bf(torch.cat([q, more_q], 1)) @ bf(torch.cat([k, more_k], 1)).mT
        return float((z.double() - exact)[seen].abs().max())

    ones = torch.ones(n, 1)
    raw = worst(torch.cat([-m * times[:, None], m * ones], 1), torch.cat([ones, times[:, None].float()], 1))

    def digits(ticks: Tensor) -> float:
        weights = m * 256.0 ** torch.arange(3)
        parts = torch.stack([(ticks // 256**j % 256).float() for j in range(3)], -1)
        return worst(torch.cat([-parts * weights, weights.expand(n, 3)], 1), torch.cat([ones.expand(n, 3), parts], 1))

    assert raw > 30 and digits(times) < 0.3 and digits(times - times[0]) < 1e-4
    enc = ec.alibi(d, heads=1, slopes=m)
    q16, k16 = (x.to(torch.bfloat16)[None, None] for x in (q, k))
    v = torch.eye(n, d)[None, None].to(torch.bfloat16)
    try:
        out, lse = ec.attention(q16, k16, v, enc, times=times, scale=1.0, backend=backend, return_lse=True)
    except ec.UnsupportedError as refusal:
        pytest.skip(f"declined: {refusal}")
    whole = exact.masked_fill(~seen, -math.inf)
    assert (lse[0, 0].double() - whole.logsumexp(-1)).abs().max() < 2e-2
    assert (out[0, 0].double() - whole.softmax(-1) @ v[0, 0].double()).abs().max() < 2e-2


# --- damped blocks without overflow ------------------------------------------------------------------------------------------------


def test_tiles_are_finite_where_the_absolute_form_is_not():
    """512 irregular times, rates up to 5 per unit: float32 attention on tiles against float64, and two separate factors in float32."""
    n, pairs = 512, 8
    random = torch.Generator().manual_seed(0)
    times = (torch.rand(n, dtype=F64, generator=random) * 2).cumsum(0)
    rate, freq = torch.logspace(-4, 0.7, pairs, dtype=F64), torch.logspace(-3, 0.5, pairs, dtype=F64)
    q, k, v = (rand(1, 1, n, 2 * pairs, seed=i) for i in range(3))
    enc = ec.damped_rope(2 * pairs, rate=rate, freq=freq)
    exact = ec.scores(q, k, enc, times=times)
    for backend in ("tiled", "auto"):
        out, lse = ec.attention(q.float(), k.float(), v.float(), enc, times=times, backend=backend, return_lse=True)
        assert (out.double() - exact.softmax(-1) @ v).abs().max() < 1e-5
        assert (lse.double() - exact.logsumexp(-1)).abs().max() < 1e-5
    both = rate.float().repeat_interleave(2)
    generator = Rotation(freq)
    turned_q, turned_k = (generator.T.act(x.float(), times) for x in (q, k))
    grown = (turned_q * torch.exp(-times.float()[:, None] * both)) @ (turned_k * torch.exp(times.float()[:, None] * both)).mT
    seen = torch.ones(n, n, dtype=torch.bool).tril()
    assert (~torch.isfinite(grown[0, 0][seen])).double().mean() > 0.3


def test_both_factors_around_a_reference_are_at_most_one():
    """exp((t - c) L) and exp((c - s) L) for s <= c <= t; where one underflows the true product is smaller still."""
    generator = DampedRotation(t(0.0, 0.1, 40.0), t(1.0, 0.3, 2.0))
    for time, c, s in ((9.0, 4.0, 0.0), (3.0, 3.0, 3.0), (1e4, 1.0, 0.0)):
        right, left = generator.matrix(c - s), generator.matrix(time - c)
        assert all(float(torch.linalg.matrix_norm(m, 2)) <= 1 + 1e-12 for m in (left, right))
        torch.testing.assert_close(left @ right, generator.matrix(time - s), rtol=0, atol=1e-12)


# --- clocks ------------------------------------------------------------------------------------------------------------------------


def test_a_product_of_steps_is_a_difference_of_a_clock():
    generator = DirectSum((DampedRotation(t(0.1), t(0.8)), Jordan(t(0.05), order=2, freq=t(0.3))))
    gate = softplus(rand(24))
    clock = gate.cumsum(0)
    product = torch.eye(6, dtype=F64)
    for i in range(4, 20):
        product = generator.matrix(gate[i]) @ product
    torch.testing.assert_close(product, generator.matrix(clock[19] - clock[3]), rtol=0, atol=1e-11)
    q, k = rand(1, 1, 24, 6, seed=1), rand(1, 1, 24, 6, seed=2)
    enc = ec.damped_rope(2, rate=0.1, freq=[0.8]) + ec.jordan_rope(4, rate=0.05, freq=[0.3], eta=1.0)
    z = ec.scores(q, k, enc, times=clock, scale=1.0)
    assert float(z[0, 0, 19, 3]) == pytest.approx(float(q[0, 0, 19] @ product @ k[0, 0, 3]), abs=1e-10)


def test_factors_that_do_not_commute_have_no_clock():
    """Delta rules multiply by 1 - b w w^T, each with its own w."""
    w = rand(2, 6)
    a, b = (torch.eye(6, dtype=F64) - 0.7 * torch.outer(x, x) / (x @ x) for x in w)
    assert (a @ b - b @ a).abs().max() > 1e-3
    with pytest.raises(ec.AxiomError, match="commute"):
        Product(*(Dense(-torch.outer(x, x)) for x in w))


def test_the_forgetting_transformer_is_alibi_on_a_learned_clock():
    n, d = 20, 8
    q, k, v = (rand(1, 2, n, d, seed=i) for i in range(3))
    log_f = torch.nn.functional.logsigmoid(rand(2, n, seed=4) + 3)
    written = torch.full((1, 2, n, n), -math.inf, dtype=F64)
    for head in range(2):
        for i in range(n):
            for j in range(i + 1):
                written[0, head, i, j] = q[0, head, i] @ k[0, head, j] / math.sqrt(d) + log_f[head, j + 1 : i + 1].sum()
    clock = (-log_f.cumsum(-1))[None].requires_grad_()  # one per head
    enc = ec.alibi(d, heads=2, slopes=1.0)
    torch.testing.assert_close(ec.scores(q, k, enc, times=clock), written, rtol=0, atol=1e-12)
    out = ec.attention(q, k, v, enc, times=clock)
    torch.testing.assert_close(out, written.softmax(-1) @ v, rtol=0, atol=1e-10)
    out.sin().sum().backward()
    assert torch.isfinite(clock.grad).all() and clock.grad.abs().sum() > 0


def test_mamba3_is_two_clocks_and_a_weight_on_keys():
    """h <- a R(+dphi) h + (1 - lam) dt a R B_prev x_prev + lam dt B x, against decay clock, phase clocks per pair and key weights."""
    n, pairs, width = 30, 4, 3
    B, C, X = rand(n, 2 * pairs, seed=1), rand(n, 2 * pairs, seed=2), rand(n, width, seed=3)
    dt = softplus(rand(n, seed=4) - 1)
    A = -(0.1 + torch.rand(n, dtype=F64, generator=torch.Generator().manual_seed(5)))
    lam, theta = torch.sigmoid(rand(n, seed=6)), math.pi * torch.tanh(rand(n, pairs, seed=7))
    # h = R(+dphi) h turns both sides by minus phi: freq is -1 on the clock of the phases.
    step, h, ys = Rotation(-torch.ones(pairs, dtype=F64)), torch.zeros(2 * pairs, width, dtype=F64), []
    for i in range(n):
        turn = lambda x, i=i: step.act(x.mT[:, None], (dt[i] * theta[i]).expand(x.shape[1], 1, pairs))[:, 0].mT  # noqa: E731
        decay = torch.exp(dt[i] * A[i])
        h = decay * turn(h)
        if i:
            h = h + (1 - lam[i]) * dt[i] * decay * turn(torch.outer(B[i - 1], X[i - 1]))
        h = h + lam[i] * dt[i] * torch.outer(B[i], X[i])
        ys.append(C[i] @ h)
    shrink, phase = (-dt * A).cumsum(0), (dt[:, None] * theta).cumsum(0)
    scores = step.T.act(C, phase) @ step.act(B, -phase).mT
    scores = scores * torch.exp(-(shrink[:, None] - shrink)).tril()
    own = lam * dt
    weight = own + torch.cat([(1 - lam[1:]) * dt[1:], torch.zeros(1, dtype=F64)])  # peeks one step ahead
    scores = torch.tril(scores * weight, -1) + torch.diag(scores.diagonal() * own)
    torch.testing.assert_close(scores @ X, torch.stack(ys), rtol=0, atol=1e-12)


# --- softmax -----------------------------------------------------------------------------------------------------------------------


def test_a_decaying_gain_keeps_far_mass_and_a_decaying_bias_does_not():
    n, rate = 4096, 0.01
    torch.manual_seed(3)
    content = torch.randn(n, dtype=F64) * 2
    q, k = torch.ones(1, 1, 1, 1, dtype=F64), content[None, None, :, None]
    last, times = t(n - 1.0), torch.arange(n, dtype=F64)
    far = (n - 1 - times) > 1000
    mass = {
        name: float(ec.scores(q, k, enc, times=last, key_times=times, scale=1.0).softmax(-1)[0, 0, 0, far].sum())
        for name, enc in (("none", ec.nope(1)), ("gain", ec.decay(1, rate=rate)), ("bias", ec.decay_bias(1, heads=1, rate=rate)))
    }
    assert 0.65 < mass["none"] < 0.8 and abs(mass["gain"] - mass["none"]) < 0.05 and mass["bias"] < 1e-3
    bias = ec.scores(q, k, ec.decay_bias(1, heads=1, rate=rate), times=last, key_times=times, scale=1.0).softmax(-1)[0, 0, 0]
    kernel = content.exp() * torch.exp(-rate * (n - 1 - times))  # linear attention with the exponential kernel and decay
    torch.testing.assert_close(bias, kernel / kernel.sum(), rtol=1e-10, atol=0)


# --- things that look relative and are not -----------------------------------------------------------------------------------------

MOVED = Sampling(times=tuple(float(x) for x in range(0, 101, 7)), shifts=(37.0,), causal=True, probes=64)


def normed(gain: Tensor):
    F, G = maps_of(ec.rope(8).generator())
    return lambda x, s: gain * rms(F(x, s)), lambda x, s: gain * rms(G(x, s))


def test_norms_after_a_rotation():
    """Without gains a norm commutes with turning; with a gain per channel it costs the law some 30 %, unless it is tied in each pair."""
    gain = 1 + 0.3 * rand(8)
    for value, relative in ((torch.ones(8, dtype=F64), True), (gain, False), (gain[0::2].repeat_interleave(2), True)):
        found = measure_axioms(*normed(value), 8, MOVED)
        assert ("shift_invariance" in found.broken) is not relative
        assert found.linearity.holds is False
    assert 0.2 < measure_axioms(*normed(gain), 8, MOVED).shift_invariance.value < 0.5
    assert measure_axioms(*maps_of(ec.rope(8).generator()), 8, MOVED).broken == ()


def test_a_norm_after_a_decay_cancels_it():
    F, G = maps_of(Decay(t(0.1), 4))
    q, k = MOVED.content(4)
    near, far = ((rms(F(q, time)) * rms(G(k, 0.0))).sum(-1) for time in (1.0, 100.0))
    torch.testing.assert_close(near, far)
    before = (F(rms(q), 100.0) * G(rms(k), 0.0)).sum(-1) / (F(rms(q), 1.0) * G(rms(k), 0.0)).sum(-1)
    torch.testing.assert_close(before, torch.full_like(before, math.exp(-9.9)))


def jets(first: float, second: float):
    """I - s g_1 N + s^2 / 2 g_2 N^2 on keys and its inverse transpose on queries."""
    N = torch.diag(torch.ones(2, dtype=F64), 1)
    key = lambda s: torch.eye(3, dtype=F64) - s * first * N + second * s * s / 2 * N @ N  # noqa: E731
    return by_matrix(lambda s: torch.linalg.inv(key(s)).mT), by_matrix(key)


def test_bounded_shears_and_free_jets_are_outside():
    """A shear bounded in the absolute position loses about half of the score under a common shift; jets with free coefficients too."""
    F, G = maps_of(Jordan(t(0.0), order=2))
    bounded = lambda p: p / (1 + p / 64)  # noqa: E731
    exact = measure_axioms(F, G, 2, MOVED)
    stabilised = measure_axioms(lambda x, s: F(x, bounded(s)), lambda x, s: G(x, bounded(s)), 2, MOVED)
    assert exact.broken == () and stabilised.broken == ("shift_invariance", "group_law")
    assert 0.35 < stabilised.shift_invariance.value < 0.65
    assert stabilised.contragredience.holds  # each side is still the inverse transpose of the other: the fault is the time
    assert measure_axioms(*jets(0.3, 0.09), 3, MOVED).broken == ()  # g_2 = g_1^2 is a change of basis
    free = measure_axioms(*jets(0.3, 0.02), 3, MOVED)
    assert free.broken == ("shift_invariance", "group_law") and free.shift_invariance.value > 0.15


def test_two_axes_need_generators_that_commute():
    """exp(x L_1 + y L_2) along a line that does not pass through the origin, (x, y) = (p, p / 2 + 3)."""
    first, second = (skew_symmetric(rand(15, seed=i) * 0.07) for i in range(2))
    at = Sampling(times=tuple(float(x) for x in range(10)), shifts=(7.0,), probes=32)

    def along(a: Tensor, b: Tensor):
        move = by_matrix(lambda p: torch.matrix_exp(p * a + (0.5 * p + 3) * b))
        return measure_axioms(move, move, 6, at)

    generic = along(first, second)
    assert "shift_invariance" in generic.broken and generic.shift_invariance.value > 0.1
    assert along(first, 1.7 * first).broken == ()


# --- single encodings --------------------------------------------------------------------------------------------------------------


def test_both_sides_turn_by_plus_freq():
    """A snippet that turns q and k by +w t and scales by e^(alpha t), e^(-alpha s) is exp((t - s) L) with -w in L, our convention."""
    w, alpha, time, s = 0.7, -0.05, 9.0, 4.0
    q, k = rand(2, 2)
    R = lambda x: t([math.cos(x), -math.sin(x)], [math.sin(x), math.cos(x)])  # noqa: E731
    snippet = float((math.exp(alpha * time) * R(w * time) @ q) @ (math.exp(-alpha * s) * R(w * s) @ k))
    for freq, same in ((w, True), (-w, False)):
        enc = ec.damped_rope(2, freq=[freq], rate=-alpha)
        ours = ec.scores(q[None, None, None], k[None, None, None], enc, times=t(time), key_times=t(s), scale=1.0)
        assert (abs(float(ours) - snippet) < 1e-12) is same


def test_transformer_xl_is_in_the_group():
    """Its four terms are one action on (q + u; W^T (q + v)) and (k; r_0), with L = 0 (+) rotations."""
    n, d, pairs = 12, 6, 4
    q, k = rand(n, d, seed=1), rand(n, d, seed=2)
    u, v, W = rand(d, seed=3), rand(d, seed=4), rand(d, 2 * pairs, seed=5)
    w = 10000.0 ** (-torch.arange(pairs, dtype=F64) / pairs)
    r = lambda lag: torch.stack([torch.sin(lag * w), torch.cos(lag * w)], -1).flatten(-2)  # noqa: E731
    waves, times = Rotation(w), torch.arange(n, dtype=F64)  # d/du (sin, cos) = w (cos, -sin): exp(uL) r_0 = r_u
    torch.testing.assert_close(waves.act(r(0.0)[None], t(2.5))[0], r(2.5))
    ours = (q + u) @ k.mT + waves.T.act((q + v) @ W, times) @ waves.act(r(0.0).expand(n, -1), -times).mT
    lag = times[:, None] - times
    written = (
        q @ k.mT + torch.einsum("td,de,tse->ts", q, W, r(lag[..., None])) + k @ u + torch.einsum("d,de,tse->ts", v, W, r(lag[..., None]))
    )
    torch.testing.assert_close(ours, written, rtol=0, atol=1e-11)


def test_the_quadratic_bias_is_a_block_of_order_three():
    """-a u^2 from constants on Jordan order 3; under softmax two coordinates do."""
    a, n = 0.01, 15
    times = torch.arange(n, dtype=F64)
    lag = times[:, None] - times
    lift = Lift(Jordan(t(0.0), order=3), t(-2 * a, 0.0, 0.0), t(0.0, 0.0, 1.0))
    torch.testing.assert_close(lift.bias(lag), -a * lag**2)
    two = torch.stack([2 * a * times, torch.full_like(times, -a)], 1) @ torch.stack([times, times**2], 1).mT
    q = torch.zeros(1, 1, n, 4, dtype=F64)
    ours = ec.scores(q, q, ec.gaussian_bias(4, heads=1, sigma=math.sqrt(1 / (2 * a))))[0, 0]
    seen = torch.ones(n, n, dtype=torch.bool).tril()
    torch.testing.assert_close(ours[seen], (-a * lag**2)[seen])
    torch.testing.assert_close(ours.softmax(-1), two.masked_fill(~seen, -math.inf).softmax(-1), rtol=0, atol=1e-13)


def test_values_turned_by_their_own_time_and_back():
    """Rotating values by R(s) and the output by R(-t) makes the value path relative too."""
    generator, n = Rotation(t(0.3, 0.01)), 10
    weights, v = rand(n, n).softmax(-1), rand(n, 4, seed=1)

    def out(shift: float) -> Tensor:
        times = torch.arange(n, dtype=F64) + shift
        return generator.act(weights @ generator.T.act(v, times), times)

    torch.testing.assert_close(out(0.0), out(1234.5), rtol=0, atol=1e-12)
    times = torch.arange(n, dtype=F64)
    lags = generator.matrix(times[:, None] - times)  # (T, S, 4, 4)
    torch.testing.assert_close(out(0.0), torch.einsum("ts,tsij,sj->ti", weights, lags, v), rtol=0, atol=1e-12)


def test_a_boost_is_two_decays():
    a, b, time = 0.3, 0.2, 2.5
    L = ec.hyperbolic(2, boost=b, rate=a).generator()
    torch.testing.assert_close(L.matrix(), t([-a, b], [b, -a]), rtol=0, atol=1e-15)
    H = t([1.0, 1.0], [1.0, -1.0]) / math.sqrt(2)
    torch.testing.assert_close(L.matrix(time), H @ torch.diag(t(math.exp((-a + b) * time), math.exp((-a - b) * time))) @ H)
    torch.testing.assert_close(L.matrix(time), torch.matrix_exp(time * t([-a, b], [b, -a])))
    assert str(L.form) == "2D"
    with pytest.raises(ec.GrowthError):
        Dense(t([0.0, b], [b, 0.0]))  # a bare boost has a mode that grows
