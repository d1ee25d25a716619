"""``eigenclock show``: blocks against dense eigenvalues, kernels against matrix exponentials, findings, pictures, bad input."""

import json
import math
import re
import struct
from xml.etree import ElementTree

import pytest
import torch

import eigenclock as ec
from eigenclock.cli.show import Options, build
from eigenclock.encodings.describe import describe, read_blocks
from eigenclock.encodings.describe.findings import distinct
from eigenclock.theory import Conjugate, Decay, Dense, Jordan, JordanForm, Plane, Product, Rotation, Zero, dissipative


def shown(run, *words):
    status, out, err = run("show", *words, "--json")
    assert (status, err) == (0, "")
    return json.loads(out)


def about(found, what):
    """The findings of one kind, as plain data."""
    return [finding for finding in found["findings"] if finding["about"] == what]


def test_every_encoding_is_shown_with_the_blocks_it_has(any_spec, run):
    found = shown(run, any_spec)
    enc = ec.encoding(found["spec"])
    assert str(enc) == found["spec"] and found["acts_on"] == enc.acts_on and (found["head_dim"], found["heads"]) == (64, 8)
    blocks = JordanForm(())
    for group in found["groups"]:
        blocks = blocks + JordanForm(f"{group['count']}{group['block']}")
    assert str(blocks) == found["form"] == str(enc.form)
    content = [group for group in found["groups"] if group["part"] == "content"]
    assert sorted(c for group in content for c in group["channels"]) == list(range(enc.width))
    assert found["findings"] and found["kernels"] and all(f["text"].endswith(".") for f in found["findings"])
    status, out, _ = run("show", any_spec)
    assert status == 0 and all(word in out for word in (found["form"], found["acts_on"], found["meaning"], found["unit"]))
    assert all(" ".join(f["text"].split()) in " ".join(out.split()) for f in found["findings"])


def test_the_numbers_are_the_eigenvalues_of_the_dense_generator(any_spec, run):
    found = shown(run, any_spec)
    generator = ec.encoding(found["spec"]).generator()
    matrices = generator.matrix().detach()
    matrices = matrices if matrices.ndim == 3 else matrices[None]
    for h, matrix in enumerate(matrices):
        ours = []
        for group in found["groups"]:
            if group["part"] != "content":
                continue
            rate = group["rate"][min(h, len(group["rate"]) - 1)]
            freq = sum(row[min(h, len(row) - 1)] for row in group["freq"])  # all axes move together
            turns = group["block"][0] in "RS"
            ours += [complex(-rate, s * abs(freq)) for s in ((1, -1) if turns else (0,))] * (group["order"] * group["count"])
            near = group["half_life"][min(h, len(group["half_life"]) - 1)]
            assert near is None if rate == 0 else near == pytest.approx(math.log(2) / rate)
        theirs = torch.linalg.eigvals(matrix)
        ours = torch.tensor(ours, dtype=theirs.dtype)
        # Eigenvalues of a block of order m are known to eps^(1/m) only.
        tolerance = 1e-9 if generator.form.order == 1 else 1e-4
        assert ours.shape == theirs.shape
        gap = (ours[:, None] - theirs).abs()
        assert float(gap.amin(0).max()) < tolerance and float(gap.amin(1).max()) < tolerance


def test_the_mean_kernel_is_the_trace_of_the_matrix_exponential(any_spec):
    generator = build(Options(any_spec, head_dim=12, heads=3)).generator()
    lag = torch.tensor([0.0, 1.0, 7.0, 300.0], dtype=torch.float64)
    dense = generator.matrix().detach()
    dense = dense if dense.ndim == 3 else dense[None]
    traces = torch.linalg.matrix_exp(dense[:, None] * lag[None, :, None, None]).diagonal(dim1=-2, dim2=-1).mean(-1)
    assert torch.allclose(read_blocks(generator).mean(lag).expand_as(traces), traces, atol=1e-8)


@pytest.mark.parametrize(
    "generator",
    [
        Dense(dissipative(torch.linspace(-1, 2, 30).reshape(2, 15).double(), torch.linspace(0, 0.3, 24).reshape(2, 6, 2).double())),
        Plane(torch.tensor([1.0, 2.0, 0.5, 0.0]), torch.tensor([0.0, 1.0, -1.0, 3.0])),
        Product(Jordan(torch.zeros(2), 2, freq=torch.tensor([0.5, 1.5])), Decay(torch.tensor([0.2]), 8)),
        Conjugate(Rotation(torch.tensor([0.3, 0.9]), "half"), torch.linspace(0, 1, 16).reshape(4, 4) + torch.eye(4)) + Zero(3),
    ],
    ids=["dense", "plane", "product", "conjugate"],
)
def test_the_mean_kernel_in_any_basis(generator):
    lag = torch.tensor([0.0, 1.0, 7.0], dtype=torch.float64)
    dense = generator.matrix().double().reshape(-1, 1, generator.dim, generator.dim)
    traces = torch.linalg.matrix_exp(dense * lag[:, None, None]).diagonal(dim1=-2, dim2=-1).mean(-1)
    assert torch.allclose(read_blocks(generator).mean(lag).expand_as(traces), traces, atol=1e-6)


def test_growth_is_the_largest_entry_of_the_matrix_exponential():
    generator = Jordan(torch.tensor([0.0, 0.01, 0.5]), 3, eta=torch.tensor([1.0, 0.2, 2.0]))
    lag = torch.linspace(0, 100, 1001, dtype=torch.float64)
    entries = generator.matrix(lag)
    corner = torch.stack([entries[:, i, 6 + i].abs() for i in range(3)], -1)  # from the last level onto the first
    found = read_blocks(generator)
    assert torch.allclose(found.growth(lag)[0], corner, rtol=1e-6, atol=1e-9)
    assert torch.allclose(found.peak(100.0)[0], corner.amax(0), rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_positions_that_merge_are_counted_as_they_round(dtype):
    top = torch.finfo(dtype).max
    for count in (2, 255, 256, 257, 258, 259, 511, 512, 513, 1000, 2049, 4096, 4097, 4099, 5000, 65504, 2**18 + 3):
        whole = torch.arange(count)
        rounded = whole.to(dtype).double()
        assert distinct(count, dtype) == rounded[whole <= top].unique().numel(), count


def test_findings_count_what_the_words_say(run):
    wavelengths = [2 * math.pi * 10000 ** (i / 32) for i in range(32)]
    found = shown(run, "rope", "--context", "1000")
    assert about(found, "turns")[0]["count"] == [sum(w <= 1000 for w in wavelengths)] * 2
    assert about(found, "never completes a turn")[0]["count"] == [sum(w > 1000 for w in wavelengths)] * 2
    assert about(found, "neighbours merge")[0]["count"] == [sum(2 * math.pi / w < 2**-8 for w in wavelengths)] * 2
    assert not about(found, "aliasing") and not about(found, "grows") and not about(found, "sees only itself")
    assert about(found, "positions")[0]["value"][0] == torch.arange(1000).bfloat16().double().unique().numel()
    assert "no direction" in about(found, "direction")[0]["text"]


def test_what_is_fast_aliases_and_what_is_slow_does_not_decay(run):
    found = shown(run, "rope(8, freq=(3.0, 3.2, -6.0, 0.001))")
    assert about(found, "aliasing")[0]["count"] == [2, 2]
    found = shown(run, "decay(8, half_life=(0.5, 0.9, 1.0, 2.0, 4096.0, 39999.0, 40960.0, 1000000.0))")
    assert about(found, "sees only itself")[0]["count"] == [2, 2]
    assert about(found, "does not decay here")[0]["count"] == [2, 2]
    assert "needs a direction" in about(found, "direction")[0]["text"]
    # No step, no aliasing: a clock with a unit has no smallest lag.
    found = shown(run, "rope(8, freq=(3.0, 3.2, -6.0, 0.001))", "--clock", "timestamps")
    assert not about(found, "aliasing")


def test_horizons_are_where_the_factor_falls_below_a_rounding(run):
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        name, half = str(dtype).removeprefix("torch."), torch.finfo(dtype).eps / 2
        gain = about(shown(run, "decay(half_life=16)", "--dtype", name), "horizon of the score")[0]["value"][0]
        assert 2 ** (-gain / 16) == pytest.approx(half)
        low, high = about(shown(run, "alibi", "--dtype", name), "horizon of the weight")[0]["value"]
        assert (math.exp(-low / 2), math.exp(-high / 256)) == (pytest.approx(half), pytest.approx(half))


def test_neighbours_are_told_apart_as_far_as_some_block_changes(run):
    lag = torch.arange(4097, dtype=torch.float64)
    for spec in ("decay(half_life=16)", "rope", "damped_rope(half_life=(2, 64))", "decay(half_life=9999)", "nope"):
        blocks = read_blocks(build(Options(spec)).generator())
        waves = torch.polar((-blocks.rate[0] * lag[:, None]).exp(), blocks.freq[0, 0] * lag[:, None])
        seen = (waves.diff(dim=0).abs() > 2**-8).any(-1).nonzero()
        found = about(shown(run, spec), "neighbours")
        assert bool(found) == bool(len(seen)), spec
        if found:
            assert math.floor(found[0]["value"][0]) in (int(seen[-1]), int(seen[-1]) + 1), spec


def test_the_direction_is_what_attention_asks_for(any_spec, run):
    found = shown(run, any_spec)
    enc = ec.encoding(found["spec"])
    q, k, v = torch.randn(3, 1, enc.heads, 5, enc.head_dim)
    learned = isinstance(enc.clock, ec.Cumulative)
    call = {"x": torch.randn(1, 5, enc.clock.features)} if learned else {"times": torch.rand(5, enc.clock.width).cumsum(0).squeeze(-1)}
    if any(part.length is not None for part in enc.outside()):
        call = {"times": torch.arange(5)}  # it knows whole positions only
    text = about(found, "direction")[0]["text"]
    if "needs a direction" in text:
        with pytest.raises(ec.ConfigError if enc.breaks else ec.GrowthError):
            ec.attention(q, k, v, enc, **call, causal=False)
    else:
        assert "no direction" in text or found["directions"] == 2
        assert torch.isfinite(ec.attention(q, k, v, enc, **call, causal=False)).all()


def test_a_bias_of_any_shape_says_where_it_halves_the_weight(run):
    text = about(shown(run, "gaussian_bias(sigma=10)"), "bias")[0]["text"]
    halved = float(re.search(r"at a lag of ([\d.]+) steps", text)[1])
    assert halved == pytest.approx(10 * math.sqrt(2 * math.log(2)), rel=5e-3)


def test_heads_that_differ_are_ranges(run):
    found = shown(run, "damped_rope(rate=((0.1, 0.2), (0.3, 0.2)), head_dim=4, heads=2)")
    assert [group["rate"] for group in found["groups"]] == [[0.1, 0.3], [0.2]]
    _, out, _ = run("show", "damped_rope(rate=((0.1, 0.2), (0.3, 0.2)), head_dim=4, heads=2)")
    assert "0.1 to 0.3" in out and "2.31 to 6.931" in out and "Ranges run over the heads" in out


def test_equal_blocks_are_one_row_and_long_tables_are_cut(run):
    assert len(shown(run, "decay(half_life=16) * alibi")["groups"]) == 2
    _, short, _ = run("show", "rope")
    _, whole, _ = run("show", "rope", "--all")
    assert "22 more" in short and "22 more" not in whole
    assert short.count("R rotation") == 10 and whole.count("R rotation") == 32
    for i in range(32):
        assert f"{2 * i}-{2 * i + 1} " in whole


def test_numbers_are_in_the_unit_of_the_clock(run):
    words = ["damped_rope(half_life='30min', freq=0.1)", "--clock", "timestamps('ns', per='min')", "--context", "8h"]
    found = shown(run, *words)
    assert found["unit"] == "min" and found["context"] == 480.0
    assert found["groups"][0]["half_life"] == [pytest.approx(30.0)]
    assert found["groups"][0]["wavelength"] == [[pytest.approx(62.83185, rel=1e-6)]]
    _, out, _ = run("show", *words)
    assert all(word in out for word in ("half-life (min)", "wavelength (min)", "480 min"))


def test_axes_have_a_wavelength_and_a_kernel_each(run):
    found = shown(run, "axial_rope(clock=axes(names=('row', 'column')))", "--context", "32")
    assert found["axes"] == ["row", "column"]
    assert [len(group["wavelength"]) for group in found["groups"]] == [2] * 32
    assert sum("along row" in panel["title"] for panel in found["kernels"]) == 2
    assert sum("along column" in finding["text"] for finding in found["findings"]) >= 1


def test_sizes_and_clock_come_from_the_spec_first():
    assert str(build(Options("rope(32) + nope(32)", heads=4))) == "rope(head_dim=32, heads=4) + nope(head_dim=32, heads=4)"
    assert str(build(Options("rope(head_dim=16, heads=2)"))) == "rope(head_dim=16, heads=2)"
    assert build(Options("rope", head_dim=16, heads=4, kv_heads=2)).kv_heads == 2
    product = build(Options("rope(clock=timestamps('ms')) * alibi", clock="timestamps('ms')"))
    assert product.clock.spec() == {"name": "timestamps", "unit": "ms", "per": "s"}
    options = Options("two_sided(alibi)", clock="timestamps('s')")
    assert build(options).clock.unit == "s" and build(options).clock.spec()["unit"] == "s"


def test_a_file_is_read(run, tmp_path):
    path = tmp_path / "enc.json"
    path.write_text(json.dumps((ec.rope(32) * ec.alibi(32, heads=4)).spec))
    assert shown(run, str(path))["spec"] == "rope(head_dim=32, heads=1) * alibi(head_dim=32, heads=4)"


def test_what_is_learned_is_shown_as_it_stands():
    enc = ec.damped_rope(8, heads=2, half_life=16, learn=("freq", "rate"))
    with torch.no_grad():
        next(iter(enc.values["rate"].parameters())).add_(math.log(2))
    assert [h for group in describe(enc).groups for h in group.half_life] == [pytest.approx(8.0)] * 4


# --- pictures ----------------------------------------------------------------------------------------------------------------------


def size_of_png(data):
    assert data[:8] == b"\x89PNG\r\n\x1a\n" and data[12:16] == b"IHDR" and data[-8:-4] == b"IEND"
    return struct.unpack(">II", data[16:24])


def check_svg(data, curved=True):
    root = ElementTree.fromstring(data)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    texts = [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert any("lag u" in text for text in texts) and any("head_dim" in text for text in texts)
    curves = sum(len(e.get("d", "")) > 500 for e in root.iter("{http://www.w3.org/2000/svg}path"))
    assert curves >= 1 or not curved


FADED = (
    "fox",
    "wall",
    "gla",
    "hgrn2",
    "mamba1",
    "mamba2",
    "mamba3",
    "rwkv6",
)  # rates are per unit of learned time: nothing is left of them over thousands of steps
# "nope" and the one head of "lightning" see all lags alike.


def test_a_picture_of_every_encoding(any_spec, run, tmp_path):
    assert run("show", any_spec, "--figure", str(tmp_path / "kernels.svg"))[0] == 0
    outside = ec.encoding(shown(run, any_spec)["spec"]).outside()
    flat = bool(outside) and all(part.curve(1.0) is None for part in outside)  # no function of the lag alone
    check_svg((tmp_path / "kernels.svg").read_bytes(), curved=any_spec not in ("nope", "lightning", *FADED) and not flat)


@pytest.mark.parametrize("spec", ["rope * alibi", "jordan_rope", "axial_rope"])
def test_a_folder_of_pictures(spec, run, tmp_path):
    status, out, _ = run("show", spec, "--out", str(tmp_path / "new"))
    svg, png = tmp_path / "new" / "kernels.svg", tmp_path / "new" / "kernels.png"
    assert status == 0 and str(svg) in out and str(png) in out and sorted((tmp_path / "new").iterdir()) == [png, svg]
    check_svg(svg.read_bytes())
    assert min(size_of_png(png.read_bytes())) > 300


def test_one_picture_by_its_ending(run, tmp_path):
    found = shown(run, "alibi", "--figure", str(tmp_path / "a.PNG"))
    assert found["files"] == [str(tmp_path / "a.PNG")] and size_of_png((tmp_path / "a.PNG").read_bytes())
    assert run("show", "alibi", "--figure", str(tmp_path / "a.svg"))[0] == 0
    assert ElementTree.fromstring((tmp_path / "a.svg").read_bytes()) is not None
    first = (tmp_path / "a.svg").read_bytes()
    assert run("show", "alibi", "--figure", str(tmp_path / "a.svg"))[0] == 0
    assert (tmp_path / "a.svg").read_bytes() == first  # the same data give the same bytes


def test_curves_hold_the_kernel(run):
    found = shown(run, "alibi", "--context", "100")
    (panel,) = found["kernels"]
    for line, head in zip(panel["lines"], (0, 2, 5, 7), strict=True):
        assert line["label"] == f"head {head}"
        slope = 2.0 ** -(head + 1)
        for x, y in zip(line["x"][:5], line["y"][:5], strict=True):  # neighbours of small lags are the lag itself
            assert y == pytest.approx(math.exp(-slope * x))
        assert line["x"][0] == 1.0 and line["x"][-1] < 100 <= line["x"][-1] * 1.1


# --- bad input ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["roep"], "did you mean 'rope'"),
        (["rope(thta=3)"], "did you mean 'theta'"),
        (["rope +"], "rope +"),
        (["3"], "expected an encoding"),
        (["nowhere.json"], "nowhere.json; it cannot be read"),
        (["rope + nope"], "head_dim"),
        (["rope", "--head-dim", "7"], "expected an even width"),
        (["rope", "--heads", "0"], "heads=0"),
        (["rope", "--heads", "4", "--kv-heads", "3"], "multiple of kv_heads"),
        (["rope", "--context", "far"], "the duration 'far'"),
        (["rope", "--context", "8h"], "counts steps"),
        (["rope", "--context", "0"], "context of 0"),
        (["rope", "--context", "nan"], "context of nan"),
        (["rope", "--context=-5"], "context of -5"),
        (["rope", "--dtype", "int8"], "bfloat16, float16, float32, float64"),
        (["rope", "--clock", "timestamp"], "did you mean 'timestamps'"),
        (["rope", "--clock", "5"], "expected a clock"),
        (["rope", "--clock", "timestamps('fortnight')"], "time unit 'fortnight'"),
        (["decay"], "rate"),
        (["damped_rope(rate=-1)"], "rates >= 0"),
        (["rope", "--figure", "kernels.pdf"], ".svg or .png"),
        (["rope", "--figure", "kernels"], ".svg or .png"),
        (["rope", "--colour", "red"], "--colour"),
        ([], "see eigenclock show --help"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_clear_line_and_leaves_nothing(words, message, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, out, err = run("show", *words)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1 and err.startswith("eigenclock show: ") and message in err, err
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_one_line(run, tmp_path):
    (tmp_path / "file").touch()
    status, out, err = run("show", "rope", "--out", str(tmp_path / "file"))
    assert (status, out) == (2, "") and err.count("\n") == 1 and "cannot write" in err


def test_without_matplotlib_the_rest_works(run, tmp_path, monkeypatch):
    monkeypatch.setattr("eigenclock.cli.show.find_spec", lambda name: None)
    status, out, err = run("show", "rope", "--out", str(tmp_path))
    assert (status, out) == (2, "") and err.count("\n") == 1 and "matplotlib" in err and not list(tmp_path.iterdir())
    assert run("show", "rope")[0] == 0
