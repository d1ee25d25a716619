"""Where frequencies, rates and slopes come from: frozen callables ``n -> Spectrum``, one file each."""

from collections.abc import Callable

from eigenclock.schedules.alibi import alibi_slopes
from eigenclock.schedules.geometric import geometric
from eigenclock.schedules.half_lives import half_lives
from eigenclock.schedules.proportional import proportional
from eigenclock.schedules.retnet import retnet_angles, retnet_rates
from eigenclock.schedules.spectrum import Spectrum
from eigenclock.schedules.xpos import xpos_rates

Schedule = Callable[[int], Spectrum]

SCHEDULES: dict[str, type] = {
    "geometric": geometric,
    "alibi": alibi_slopes,
    "half_lives": half_lives,
    "retnet": retnet_rates,
    "retnet_angles": retnet_angles,
    "xpos": xpos_rates,
    "proportional": proportional,
}

__all__ = [
    "SCHEDULES",
    "Schedule",
    "Spectrum",
    "alibi_slopes",
    "geometric",
    "half_lives",
    "proportional",
    "retnet_angles",
    "retnet_rates",
    "xpos_rates",
]
