"""ALiBi: a linear penalty on the lag, the nilpotent block of order 2 lifted on constants."""

from typing import Any

from eigenclock.clocks import Clock
from eigenclock.encodings.base import Encoding, Recipe, Values
from eigenclock.encodings.decay_bias import no_content
from eigenclock.encodings.parameter import Parameter, as_numbers
from eigenclock.encodings.rates import Numbers, fit_rows, read_learn, scheduled
from eigenclock.errors import GrowthError
from eigenclock.schedules import alibi_slopes
from eigenclock.theory import Lift, linear_bias


def alibi(
    head_dim: int,
    *,
    heads: int,
    kv_heads: int | None = None,
    slopes: Numbers = None,
    learn: str | tuple[str, ...] = (),
    clock: Clock | None = None,
) -> Encoding:
    """Attention with linear biases: logit = q . k / sqrt(d) - slope_h (t - s), added after the scale.

    Args:
        slopes: one number or (heads,); left out, the published slopes for this number of heads. A schedule such as
            ``alibi_slopes("single_geometric_sequence")`` names another rule, or the shard of a larger model that these heads are.
        learn: "slope" to train the slopes (on a log scale).
    Units: logits per unit of the clock; on timestamps in seconds, a slope per second.
    Raises: GrowthError where a slope is negative.
    Source: Press et al. (ALiBi), 2108.12409.

    >>> alibi(64, heads=8).form
    JordanForm('64Z + 1Z2')
    """
    chosen = read_learn(learn, ("slope",))
    schedule = alibi_slopes() if slopes is None else slopes
    values = scheduled(schedule, heads, "slopes") if callable(schedule) else as_numbers(schedule, "slopes")
    if bool((values < 0).any()):
        raise GrowthError(
            f"got a slope of {float(values.min()):g}; expected slopes >= 0: the bias is -slope * (t - s), a negative slope rewards distance"
        )
    values = fit_rows(values.reshape(1) if values.ndim == 0 else values, heads, (1,), "slopes", False).reshape(-1).expand(heads).clone()
    options: dict[str, Any] = {"slopes": slopes, "learn": list(chosen) or None}
    return Recipe(
        "alibi",
        head_dim,
        heads,
        kv_heads,
        clock,
        options,
        {"slope": Parameter(values, "slope" in chosen)},
        no_content,
        _lift,
    )


def _lift(values: Values, recipe: Recipe) -> tuple[Lift, ...]:
    return (linear_bias(values["slope"]),)
