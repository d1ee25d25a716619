"""Line figures in one style, as SVG for a page or PNG for a slide: readable on light and on dark ground."""

import html
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any

from eigenclock.errors import ConfigError, ShapeError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Middle tones, told apart on white and on near black; the dash and the marker tell the series apart without colour.
COLOURS = ("#2f7ec7", "#d9722e", "#2f9e63", "#c2508f", "#8a6fd6", "#a8851f", "#1d9aa6", "#c94a4a")
DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
STYLES = ("line", "points", "both")

# What is drawn in this colour takes the colour of the text around it once the SVG stands in a page.
_INK = "#010203"
_STYLE: dict[str, Any] = {
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10,
    "grid.color": "#808080",
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.7,
    "lines.markersize": 4,
    "svg.fonttype": "none",
    "svg.hashsalt": "eigenclock",  # the same data give the same bytes
    "text.parse_math": False,  # a label is text, also when it holds a dollar sign
}


@dataclass(frozen=True)
class Line:
    """One series: ``y`` over ``x``, optionally with a band from ``low`` to ``high``; NaN leaves a gap.

    Raises:
        ShapeError: the sequences differ in length.
        ConfigError: ``style`` is not one of "line", "points", "both".

    Example:
        >>> Line("rope", [64, 128], [2.2, 2.5]).label
        'rope'
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    style: str = "line"

    def __post_init__(self) -> None:
        for name in ("x", "y", "low", "high"):
            values = getattr(self, name)
            if values is not None:
                object.__setattr__(self, name, tuple(float(v) for v in values))
        lengths = {name: len(v) for name in ("x", "y", "low", "high") if (v := getattr(self, name)) is not None}
        if len(set(lengths.values())) > 1:
            raise ShapeError(f"line {self.label!r}: got lengths {lengths}; expected one y (and low, high) for each x")
        if (self.low is None) != (self.high is None):
            raise ShapeError(f"line {self.label!r}: a band needs both low and high")
        if self.style not in STYLES:
            raise ConfigError(f"line {self.label!r}: got style {self.style!r}; expected one of {', '.join(STYLES)}")

    def to_dict(self) -> dict[str, object]:
        """Plain data that JSON can hold; values that are not finite become their names."""

        def plain(values: Sequence[float] | None) -> list[float | str] | None:
            return None if values is None else [v if math.isfinite(v) else str(v) for v in values]

        return {"label": self.label, "x": plain(self.x), "y": plain(self.y), "low": plain(self.low), "high": plain(self.high)}


def _scale(axes: "Axes", which: str, values: Sequence[float], log: bool) -> None:
    """Set one axis: logarithmic where asked for and possible, with ticks that are plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    axis = axes.xaxis if which == "x" else axes.yaxis
    finite = [v for v in values if math.isfinite(v)]
    positive = [v for v in finite if v > 0]
    # A logarithm of nothing positive would leave the axes empty; a linear scale shows what there is.
    if log and positive:
        axes.set(**{f"{which}scale": "log"})
        low, high = min(positive), max(positive)
        # Lengths double; frequencies run over decades, unless there is not even one and a half of them.
        twos = high <= 30 * low or (low >= 1 and high <= 2**8 * low)
        axis.set_major_locator(LogLocator(base=2 if twos else 10, numticks=9))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    elif which == "x" and finite and all(v == round(v) for v in finite):
        axis.set_major_locator(MaxNLocator(nbins="auto", steps=[1, 2, 5, 10], integer=True))


@dataclass(frozen=True)
class Panel:
    """One pair of axes with several lines, and upright marks ``(x, text)`` such as the training length.

    Example:
        >>> panel = Panel((Line("rope", [64, 128], [2.2, 2.5]),), x_label="position", marks=((64, "trained"),))
        >>> len(panel.lines)
        1
    """

    lines: Sequence[Line]
    x_label: str = ""
    y_label: str = ""
    title: str = ""
    log_x: bool = False
    log_y: bool = False
    marks: Sequence[tuple[float, str]] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "lines", tuple(self.lines))
        object.__setattr__(self, "marks", tuple((float(x), text) for x, text in self.marks))

    def draw(self, axes: "Axes", number: dict[str, int]) -> None:
        """Draw on matplotlib axes; ``number`` gives each label its place in the colour cycle."""
        for line in self.lines:
            k = number[line.label]
            look: dict[str, Any] = {"color": COLOURS[k % len(COLOURS)], "label": line.label or None}
            dash = "none" if line.style == "points" else DASHES[k % len(DASHES)]
            marker = "none" if line.style == "line" else MARKERS[k % len(MARKERS)]
            if line.style == "line" and len(line.x) == 1:
                marker = "o"  # a line of one point would be invisible
            axes.plot(line.x, line.y, linestyle=dash, marker=marker, **look)
            if line.low is not None and line.high is not None:
                axes.fill_between(line.x, line.low, line.high, color=look["color"], alpha=0.18, linewidth=0)
        for which, log in (("x", self.log_x), ("y", self.log_y)):
            _scale(axes, which, [v for line in self.lines for v in getattr(line, which)], log)
        for x, text in self.marks:
            axes.axvline(x, color="#808080", linewidth=0.9, linestyle=(0, (2, 2)))
            above: Any = {"xycoords": ("data", "axes fraction"), "xytext": (0, 3), "textcoords": "offset points"}
            axes.annotate(text, (x, 1.0), **above, ha="center", fontsize=8)
        axes.set(xlabel=self.x_label, ylabel=self.y_label)
        axes.set_title(self.title, pad=18 if self.marks else 6)
        # Beside the axes there is room for many names; within them for a few.
        if len(self.lines) > 3:
            axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
        elif len(self.lines) > 1 or (self.lines and self.lines[0].label and not self.title):
            axes.legend(loc="best")


@dataclass(frozen=True)
class Figure:
    """Panels side by side, wrapped into rows of ``columns``; a label has the same colour in all of them.

    ``alt`` says in words what the picture shows, for those who cannot see it.

    Raises:
        ShapeError: there is no panel.

    Example:
        >>> figure = Figure("Loss", (Panel((Line("rope", [64, 128], [2.2, 2.5]),)),))
        >>> figure.svg()[:5]
        b'<?xml'
    """

    title: str
    panels: Sequence[Panel]
    alt: str = ""
    note: str = ""
    columns: int = 2
    panel_size: tuple[float, float] = (6.0, 3.5)

    def __post_init__(self) -> None:
        object.__setattr__(self, "panels", tuple(self.panels))
        if not self.panels or self.columns < 1:
            raise ShapeError(
                f"figure {self.title!r}: got {len(self.panels)} panels in {self.columns} columns; expected at least one of each"
            )

    def _render(self, form: str, paper: str, dpi: float) -> bytes:
        # No pyplot: it keeps figures alive and picks a backend for a screen.
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure as Canvas

        columns = min(self.columns, len(self.panels))
        rows = -(-len(self.panels) // columns)
        labels = dict.fromkeys(line.label for panel in self.panels for line in panel.lines)
        number = {label: k for k, label in enumerate(labels)}
        width, height = self.panel_size
        out = BytesIO()
        style: Any = {**matplotlib.rcParamsDefault, **_STYLE, "figure.facecolor": paper, "savefig.facecolor": paper}
        with matplotlib.rc_context(style):
            canvas = Canvas(figsize=(width * columns, height * rows), layout="constrained")
            FigureCanvasAgg(canvas)
            grid = canvas.subplots(rows, columns, squeeze=False).ravel()
            for panel, axes in zip(self.panels, grid, strict=False):
                panel.draw(axes, number)
            for axes in grid[len(self.panels) :]:
                axes.set_visible(False)
            metadata = {"Date": None, "Creator": None, "Type": None, "Format": None} if form == "svg" else {"Software": None}
            canvas.savefig(out, format=form, dpi=dpi, metadata=metadata)
        return out.getvalue()

    def svg(self) -> bytes:
        """A whole SVG file; axes and text are in the current colour, black unless a page sets another."""
        text = self._render("svg", "none", 72).decode("utf-8")
        text = re.sub(r"<!DOCTYPE.*?>\s*", "", text, flags=re.DOTALL)
        text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
        text = re.sub(r' id="[\w.]+_\d+"', "", text)  # group names, which would repeat in a page of several figures
        return text.replace(_INK, "currentColor").encode("utf-8")

    def png(self, dpi: float = 144) -> bytes:
        """A PNG file on white."""
        return self._render("png", "white", dpi)

    def html(self) -> str:
        """The figure as one HTML element with the SVG inside it."""
        svg = re.sub(r"^<\?xml.*?\?>\s*", "", self.svg().decode("utf-8"), flags=re.DOTALL).strip()
        svg = svg.replace("<svg ", f'<svg role="img" aria-label="{html.escape(self.alt or self.title)}" ', 1)
        title = f"<strong>{html.escape(self.title)}</strong>" if self.title else ""
        caption = "<br>".join(part for part in (title, html.escape(self.note)) if part)
        return f"<figure>{svg}" + (f"<figcaption>{caption}</figcaption>" if caption else "") + "</figure>"

    def to_dict(self) -> dict[str, object]:
        """The numbers behind the picture as plain data."""
        panels = [
            {"title": p.title, "x_label": p.x_label, "y_label": p.y_label, "lines": [line.to_dict() for line in p.lines]}
            for p in self.panels
        ]
        return {"title": self.title, "note": self.note, "panels": panels}
