"""What time is, for trades with a night between them: real time, trading time, traded volume.

    python examples/trading_time.py

One encoding and three clocks. Under ``Timestamps`` the night between two trading days is 17.5 hours, and everything from before it is
forgotten. Under ``Sessions`` it is nothing: a half-life of 30 minutes is 30 minutes of trading. Under ``Column`` time passes where
shares change hands, fast in a busy minute and slowly at lunch.
"""

import sys

import torch
from torch import Tensor

import eigenclock as ec

SECOND = 1_000_000_000
NIGHT = 17.5 * 3600  # 16:00 to 09:30
CLOSE = 1_772_830_800 * SECOND  # Friday, 6 March 2026, 16:00 in New York, or 21:00 UTC
REOPEN = CLOSE + (2 * 86_400 + int(NIGHT) - 3600) * SECOND  # Monday, 09:30; clocks go forward on Sunday
HALF_LIVES = {"real time": "30min", "trading time": "30min", "volume": "200000 shares"}


def trades(count: int = 400, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Synthetic trades of the last hour before the weekend and the first one after: int64 nanoseconds, and shares, both (T,)."""
    random = torch.Generator().manual_seed(seed)
    half = count // 2
    friday = CLOSE - (torch.rand(half, generator=random, dtype=torch.float64) * 3600 * SECOND).long()
    monday = REOPEN + (torch.rand(count - half, generator=random, dtype=torch.float64) * 3600 * SECOND).long()
    shares = torch.randint(1, 20, (count,), generator=random) * 100
    shares[half : half + count // 8] *= 5  # the first quarter of Monday's hour is busy
    return torch.cat([friday, monday]).sort().values, shares


def clocks() -> dict[str, ec.Encoding]:
    """One encoding, the weight of a key halves with its age, over three meanings of age."""
    known = {
        "real time": ec.Timestamps("ns", per="s"),
        "trading time": ec.Sessions("09:30-16:00", "America/New_York", unit="ns", per="s"),
        "volume": ec.Column("shares"),
    }
    return {name: ec.decay_bias(8, heads=1, half_life=HALF_LIVES[name], clock=clock) for name, clock in known.items()}


def times(name: str, stamps: Tensor, shares: Tensor) -> Tensor:
    """What the clock reads: stamps, or the running total of shares."""
    return shares.cumsum(-1) if name == "volume" else stamps


def weight_before_the_weekend(stamps: Tensor, shares: Tensor, row: int) -> dict[str, float]:
    """How much of what one trade attends to is from Friday, with queries and keys that prefer nothing."""
    friday = (stamps < REOPEN).double()[None, None, :, None].repeat(1, 1, 1, 8)
    nothing = torch.zeros_like(friday)
    out = {}
    for name, enc in clocks().items():
        out[name] = float(ec.attention(nothing, nothing, friday, enc, times=times(name, stamps, shares))[0, 0, row, 0])
    return out


def main() -> int:
    """Prints the age of Friday's last trade under each clock, and what is left of Friday on Monday."""
    stamps, shares = trades()
    friday, monday = int((stamps < REOPEN).sum()) - 1, int((stamps < REOPEN).sum())
    print("from the last trade of Friday to the first of Monday")
    for name, enc in clocks().items():
        ticks = enc.clock(times(name, stamps, shares)).ticks
        print(f"  {name:<13} {float(ticks[monday] - ticks[friday]):>9.0f} {enc.clock.unit:<7} half-life {HALF_LIVES[name]}")
    print("\nweight on Friday's trades, by time after Monday's opening")
    print("  minutes   " + "".join(f"{name:>14}" for name in HALF_LIVES))
    for minutes in (1, 15, 30, 60):
        row = int((stamps < REOPEN + minutes * 60 * SECOND).sum()) - 1
        weights = weight_before_the_weekend(stamps, shares, row)
        print(f"  {minutes:>7}   " + "".join(f"{weights[name]:>14.3f}" for name in HALF_LIVES))
    return 0


if __name__ == "__main__":
    sys.exit(main())
