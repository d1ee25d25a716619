"""Case 35: stamps of dataframes are read exactly, or refused by name; with a zone, an hour that is repeated counts as an hour."""

import datetime as dt
from zoneinfo import ZoneInfo

import pytest
import torch

import eigenclock as ec

pd = pytest.importorskip("pandas")


def forms(given):
    local = [dt.datetime.fromisoformat(text) for text in given["stamps_local"]]
    zone = pd.DatetimeIndex(pd.to_datetime(local, utc=True)).tz_convert(given["zone"])
    plain = zone.tz_convert("UTC").tz_localize(None)
    return {
        "index with a zone": zone, "index without a zone": plain, "series with a zone": pd.Series(zone), "series": pd.Series(plain),
        "list of Timestamps": list(zone), "object array": zone.to_numpy(), "datetimes": local, "text": given["stamps_local"],
        "zoneinfo": [x.astimezone(ZoneInfo(given["zone"])) for x in local], "int64": plain.astype("datetime64[ns]").asi8,
    }  # fmt: skip


@pytest.mark.parametrize("name", ["index with a zone", "index without a zone", "series with a zone", "series", "list of Timestamps",
                                  "object array", "datetimes", "text", "zoneinfo", "int64"])  # fmt: skip
def test_weights_of_the_case(case, name):
    given, expect = case["given"], case["expect"]
    times = forms(given)[name]
    clock = ec.Timestamps("ns", per="h")
    assert clock(times).ticks.tolist() == expect["hours_passed"]
    enc = ec.decay_bias(given["head_dim"], heads=1, half_life=given["half_life"], clock=ec.Timestamps("ns"))
    q, k = (torch.tensor(given[side], dtype=torch.float64)[None, None] for side in "qk")
    eye = torch.eye(len(times), dtype=torch.float64)[None, None]
    out = ec.attention(q, k, eye, enc, times=times, scale=given["scale"])
    wanted = torch.tensor(expect["weights"], dtype=torch.float64)[None, None]
    torch.testing.assert_close(out, wanted, rtol=0, atol=expect["abs_tol"])
