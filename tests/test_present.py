"""Tables, figures, pages and files: what a reader sees, and what is left behind when a write fails."""

import json
import math
import os
import re
import stat
import subprocess
import sys
import textwrap
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from eigenclock.errors import ConfigError, EigenclockError, ShapeError
from eigenclock.present import Code, Figure, Heading, Line, Panel, Table, append_line, render_page, write_whole

TABLE = Table(
    "Loss <bits>",
    ("encoding", "form", "1x", "8x"),
    (("rope", "[B, T]", 2.19443, 5.0), ("a|b", "28R & 4S", None, math.nan)),
    note="One seed & no evidence.",
)


class Elements(HTMLParser):
    """Tags and attributes of a page; fails on a tag that is not closed or closed twice."""

    VOID = frozenset({"meta", "br", "link", "img", "hr", "input"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.words: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_table_shows_the_same_cells_everywhere():
    from rich.console import Console

    console = Console(width=100, file=open(os.devnull, "w"), record=True)  # noqa: SIM115
    with console.file:
        console.print(TABLE.rich())
    terminal = console.export_text()
    page = Elements(TABLE.html())
    cells = [word for word in page.words if word.strip()]
    for row in TABLE.texts():
        for text in row:
            assert text in terminal
            assert text in cells
            assert text.replace("|", "\\|") in TABLE.markdown()
    assert "[B, T]" in terminal  # a cell is not read as markup


def test_markdown_table_has_one_bar_between_cells():
    lines = [line for line in TABLE.markdown().splitlines() if line.startswith("|")]
    assert [len(re.findall(r"(?<!\\)\|", line)) for line in lines] == [len(TABLE.columns) + 1] * (len(TABLE.rows) + 2)


def test_numbers_align_to_the_right_and_text_to_the_left():
    assert TABLE.numeric() == (False, False, True, True)
    assert Table("", ("a", "b", "c"), (("2.1 ± 0.1", "-", "1x"), ("<= 3", None, "rope"))).numeric() == (True, False, False)
    assert Table("", ("a",), ()).numeric() == (False,)


def test_table_data_survive_json_at_full_precision():
    table = Table("t", ("a", "b", "c"), ((np.int64(3), torch.tensor(0.5), 1 / 3), (math.inf, -math.inf, math.nan)))
    back = json.loads(json.dumps(table.to_dict(), allow_nan=False))
    assert back["rows"] == [[3, 0.5, 1 / 3], ["inf", "-inf", "nan"]]


@pytest.mark.parametrize("row", [("rope",), ("rope", 1, 2, 3, 4)])
def test_a_row_of_the_wrong_length_is_refused(row):
    with pytest.raises(ShapeError, match=rf"row 1 has {len(row)} cells; expected 2"):
        Table("t", ("a", "b"), (("x", 1), row))


def lines(n: int = 2) -> tuple[Line, ...]:
    x = [64, 128, 256, 512]
    return tuple(Line(f"series {k} $<&>$", x, [2 + k, 2.5, math.nan, 3.5 - k / 7]) for k in range(n))


def test_svg_is_well_formed_and_names_every_series():
    figure = Figure("Loss", (Panel(lines(9), x_label="position", y_label="bits per byte", log_x=True, marks=((128, "trained"),)),))
    root = ElementTree.fromstring(figure.svg())
    words = "".join(root.itertext())
    for text in ["position", "bits per byte", "trained", *(line.label for line in lines(9))]:
        assert text in words


@pytest.mark.parametrize(
    ("values", "ticks"), [([64, 512], ["64", "128", "256", "512"]), ([0.001, 1], ["0.001", "0.01", "0.1", "1"]), ([1, 4], ["1", "2", "4"])]
)
def test_ticks_of_a_logarithmic_axis_are_plain_numbers(values, ticks):
    root = ElementTree.fromstring(Figure("", (Panel((Line("a", values, [0, 1]),), log_x=True),)).svg())
    words = [text.strip() for text in root.itertext()]
    assert set(ticks) <= set(words)
    assert not [word for word in words if "$" in word or "\\" in word]


def test_svg_holds_the_data():
    """Points that are twice as far apart in the data are twice as far apart in the picture."""
    root = ElementTree.fromstring(Figure("", (Panel((Line("a", [0, 1, 2, 3], [0.0, 1.0, 3.0, 2.0]),)),)).svg())
    paths = [node.get("d", "") for node in root.iter() if node.tag.endswith("path")]
    points = [np.array(re.findall(r"[ML] ([\d.]+) ([\d.]+)", d), dtype=float) for d in paths]
    curve = next(p for p in points if len(p) == 4 and len(set(p[:, 1])) == 4)
    x, y = curve[:, 0], -curve[:, 1]
    np.testing.assert_allclose((x - x[0]) / (x[1] - x[0]), [0, 1, 2, 3], rtol=1e-4)
    np.testing.assert_allclose((y - y[0]) / (y[1] - y[0]), [0, 1, 3, 2], rtol=1e-4)


def test_figures_are_reproducible_and_leave_matplotlib_as_it_was():
    import matplotlib

    before = dict(matplotlib.rcParams)
    figure = Figure("f", (Panel(lines()),))
    assert figure.svg() == Figure("f", (Panel(lines()),)).svg()
    assert figure.svg() != Figure("f", (Panel(lines(3)),)).svg()
    assert dict(matplotlib.rcParams) == before


def test_a_label_has_one_colour_in_all_panels():
    a, b = Line("a", [0, 1], [0, 1]), Line("b", [0, 1], [1, 0])
    both = Figure("", (Panel((a, b)), Panel((b,)))).svg().decode()
    first, second = (Figure("", (Panel((line,)),)).svg().decode() for line in (a, b))
    colours = [set(re.findall(r"stroke: (#[0-9a-f]{6})", svg)) - {"#808080"} for svg in (both, first, second)]
    assert len(colours[0]) == 2  # a and b, and b in the second panel is the b of the first
    assert len(colours[1]) == len(colours[2]) == 1


def test_png_is_a_picture_on_white():
    import io

    from PIL import Image

    image = Image.open(io.BytesIO(Figure("f", (Panel(lines()),)).png(dpi=50))).convert("RGB")
    assert image.getpixel((0, 0)) == (255, 255, 255)
    assert len(set(image.get_flattened_data() if hasattr(image, "get_flattened_data") else image.getdata())) > 20


@pytest.mark.parametrize(
    "panel",
    [
        Panel((Line("empty", [], []),), log_x=True, log_y=True),
        Panel((Line("zero", [0, 1], [0.0, 0.0]),), log_y=True),
        Panel((Line("nothing", [0, 1], [math.nan, math.nan]),), log_y=True),
        Panel((Line("one", [3], [2.0]),)),
        Panel((Line("huge", [0, 1], [1e300, math.inf]),)),
        Panel(()),
    ],
)
def test_odd_data_still_draw(panel):
    ElementTree.fromstring(Figure("f", (panel, panel, panel)).svg())


def test_lines_refuse_what_does_not_fit():
    with pytest.raises(ShapeError, match="one y"):
        Line("a", [1, 2], [1])
    with pytest.raises(ShapeError, match="both low and high"):
        Line("a", [1], [1], low=[0])
    with pytest.raises(ConfigError, match="expected one of line, points, both"):
        Line("a", [1], [1], style="dots")
    with pytest.raises(ShapeError, match="got 0 panels"):
        Figure("f", ())


PARTS = [
    Heading("Result"),
    "Text with <b>no markup</b> & a “quote”.",
    TABLE,
    Heading("Curves"),
    Figure("Loss & more", (Panel(lines(3)), Panel(lines(2))), note="<note>"),
    Figure("Loss again", (Panel(lines(3)),)),
    Heading("Result"),
    Code("eigenclock compare \\\n  --text <FILE>"),
]


def test_page_needs_nothing_from_outside():
    page = render_page("A & <B>", PARTS, subtitle="sub <i>title</i>")
    elements = Elements(page)
    assert not {"script", "link", "img", "iframe", "object", "b", "i", "note", "file"} & set(elements.tags)
    for _, name, value in elements.attributes:
        if name.startswith("xmlns"):
            continue  # the name of a vocabulary, never fetched
        assert name != "src"
        assert not name.startswith("on")
        assert "//" not in value
        if name.endswith("href"):
            assert value.startswith("#")
    assert not re.search(r"@import|url\((?!#)", page)


def test_page_shows_its_parts_in_order_and_as_text():
    elements = Elements(render_page("A & <B>", PARTS))
    text = "".join(elements.words)
    order = ["Text with <b>no markup</b> & a “quote”.", "Loss <bits>", "One seed & no evidence.", "Loss & more", "<note>", "--text <FILE>"]
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    assert "A & <B>" in elements.words


def test_links_lead_to_headings_and_ids_are_unique():
    elements = Elements(render_page("t", PARTS))
    ids = [value for tag, name, value in elements.attributes if name == "id" and tag != "path" and tag != "clippath" and tag != "g"]
    links = [value[1:] for tag, name, value in elements.attributes if tag == "a" and name == "href"]
    assert len(links) == 3
    assert len(set(ids)) == len(ids)
    assert set(links) <= set(ids)


def test_page_figures_take_the_colour_of_the_page():
    page = render_page("t", PARTS)
    assert "prefers-color-scheme: dark" in page
    svg = page[page.index("<svg") : page.index("</svg>")]
    assert "currentColor" in svg
    assert not re.search(r"#000000|: black", svg)


def test_write_whole_replaces_and_makes_folders(tmp_path):
    path = tmp_path / "a" / "b" / "report.html"
    assert write_whole(path, "één") == path
    assert path.read_bytes() == "één".encode()
    write_whole(path, b"\x00two")
    assert path.read_bytes() == b"\x00two"
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]


def test_write_whole_keeps_permissions_and_links(tmp_path):
    real, link = tmp_path / "real", tmp_path / "link"
    write_whole(real, "old")
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(real.stat().st_mode) == 0o666 & ~umask
    real.chmod(0o640)
    link.symlink_to(real)
    write_whole(link, "new")
    assert link.is_symlink()
    assert real.read_text() == "new"
    assert stat.S_IMODE(real.stat().st_mode) == 0o640


def test_a_write_that_fails_says_path_and_reason(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(EigenclockError, match=r"cannot write .*report.html: a part of the path is a file"):
        write_whole(tmp_path / "file" / "report.html", "x")
    with pytest.raises(EigenclockError, match=f"cannot write {re.escape(str(tmp_path))}: it is a folder"):
        write_whole(tmp_path, "x")
    with pytest.raises(EigenclockError, match="the name is too long"):
        write_whole(tmp_path / ("n" * 300), "x")
    with pytest.raises(EigenclockError, match="no such file or folder"):
        append_line(tmp_path / "absent" / "log", "x")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
def test_no_space_left_is_one_clear_line():
    for write in (write_whole, append_line):
        with pytest.raises(EigenclockError) as caught:
            write("/dev/full", "x")
        assert str(caught.value).startswith("cannot write /dev/full: no space is left on the device")
        assert "\n" not in str(caught.value)
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)  # the device was not replaced by a file


@pytest.mark.skipif(sys.platform == "win32", reason="limits on file sizes are POSIX")
def test_a_failed_write_keeps_the_old_file_and_no_rest(tmp_path):
    """A limit on the size of files stands in for a full disk in the middle of a write."""
    write_whole(tmp_path / "checkpoint", b"old")
    append_line(tmp_path / "log", "first")
    program = """
        import resource, sys
        from eigenclock.errors import EigenclockError
        from eigenclock.present import append_line, write_whole
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        for write, name in ((write_whole, "checkpoint"), (append_line, "log")):
            try:
                write(sys.argv[1] + "/" + name, "x" * 5000)
            except EigenclockError as error:
                print(error)
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)], capture_output=True, text=True, check=True, timeout=120
    )
    assert run.stdout.count("larger than is allowed here") == 2
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"checkpoint": b"old", "log": b"first\n"}


def test_an_interrupted_write_leaves_nothing_behind(tmp_path, monkeypatch):
    write_whole(tmp_path / "a", "old")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_whole(tmp_path / "a", "new")
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"a": "old"}


def test_append_line_adds_one_line_each_time(tmp_path):
    for text in ("a", "b\n", "ç"):
        append_line(tmp_path / "log", text)
    assert (tmp_path / "log").read_text(encoding="utf-8").splitlines() == ["a", "b", "ç"]
