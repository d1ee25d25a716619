"""Where frequencies, rates and slopes come from: frozen callables ``n -> Spectrum``, one file each."""

from eigenclock.schedules.alibi import alibi_slopes
from eigenclock.schedules.drope import drope
from eigenclock.schedules.dynamic import dynamic
from eigenclock.schedules.geometric import geometric
from eigenclock.schedules.half_lives import half_lives
from eigenclock.schedules.inner import at_length, rows_by_length
from eigenclock.schedules.lightning import lightning_rates, minimax_rates
from eigenclock.schedules.linear import linear
from eigenclock.schedules.llama3 import llama3
from eigenclock.schedules.longrope import longrope
from eigenclock.schedules.ntk import ntk
from eigenclock.schedules.ntk_by_parts import ntk_by_parts
from eigenclock.schedules.proportional import proportional
from eigenclock.schedules.resonance import resonance
from eigenclock.schedules.retnet import retnet_angles, retnet_rates
from eigenclock.schedules.spectrum import Schedule, Spectrum
from eigenclock.schedules.temperature import log_position, ssmax
from eigenclock.schedules.xpos import xpos_rates
from eigenclock.schedules.yarn import yarn

SCHEDULES: dict[str, type] = {
    "geometric": geometric,
    "alibi": alibi_slopes,
    "half_lives": half_lives,
    "retnet": retnet_rates,
    "retnet_angles": retnet_angles,
    "lightning": lightning_rates,
    "minimax": minimax_rates,
    "xpos": xpos_rates,
    "proportional": proportional,
    "linear": linear,
    "ntk": ntk,
    "dynamic": dynamic,
    "ntk_by_parts": ntk_by_parts,
    "yarn": yarn,
    "longrope": longrope,
    "llama3": llama3,
    "resonance": resonance,
    "drope": drope,
}

__all__ = [
    "SCHEDULES",
    "Schedule",
    "Spectrum",
    "alibi_slopes",
    "at_length",
    "drope",
    "dynamic",
    "geometric",
    "half_lives",
    "lightning_rates",
    "linear",
    "llama3",
    "log_position",
    "longrope",
    "minimax_rates",
    "ntk",
    "ntk_by_parts",
    "proportional",
    "resonance",
    "retnet_angles",
    "retnet_rates",
    "rows_by_length",
    "ssmax",
    "xpos_rates",
    "yarn",
]
