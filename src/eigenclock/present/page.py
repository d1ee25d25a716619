"""A report as one HTML file that needs nothing else: no script, no font, no request to anywhere."""

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass

from eigenclock.present.figure import Figure
from eigenclock.present.table import Table


@dataclass(frozen=True)
class Heading:
    """A section heading; a page with three or more of them opens with links to each.

    Example:
        >>> Heading("Learned spectra").anchor
        'learned-spectra'
    """

    text: str

    @property
    def anchor(self) -> str:
        """The name a link within the page uses."""
        return re.sub(r"[^\w]+", "-", self.text.lower()).strip("-") or "section"


@dataclass(frozen=True)
class Code:
    """Text that keeps its spaces and line breaks: a command, a configuration.

    Example:
        >>> Code("eigenclock compare --seeds 3").text
        'eigenclock compare --seeds 3'
    """

    text: str


Part = str | Heading | Code | Table | Figure

_TEMPLATE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{{ title }}</title>
<style>
:root { color-scheme: light dark; --ink: #1c1e21; --soft: #5b6169; --paper: #ffffff; --line: #d5d9de; --tint: #f4f6f8; --link: #1f66b0; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8eb; --soft: #a3abb5; --paper: #15181c; --line: #373d45; --tint: #1e2329; --link: #7db7f0; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 2rem 1.25rem 4rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 .25rem; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 .5rem; }
p { max-width: 46rem; margin: .75rem 0; }
a { color: var(--link); }
nav ul { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; list-style: none; padding: 0; margin: 1rem 0 0; }
.subtitle, .note, figcaption { color: var(--soft); }
.note, figcaption { font-size: .9rem; }
.table { overflow-x: auto; margin: 1.25rem 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding-bottom: .4rem; }
th, td { text-align: left; padding: .3rem .9rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--soft); font-weight: 600; white-space: nowrap; }
.number { text-align: right; white-space: nowrap; }
pre { background: var(--tint); border: 1px solid var(--line); border-radius: 4px; padding: .75rem 1rem;
  overflow-x: auto; font-size: .875rem; }
figure { margin: 1.5rem 0; }
figure svg { display: block; max-width: 100%; height: auto; color: var(--ink); }
figcaption { margin-top: .4rem; max-width: 46rem; }
@media print { body { max-width: none; padding: 0; } figure, table { break-inside: avoid; } }
</style>
</head>
<body>
<header>
<h1>{{ title }}</h1>
{% if subtitle %}<p class="subtitle">{{ subtitle }}</p>
{% endif %}{% if links %}<nav aria-label="Sections"><ul>
{% for anchor, text in links %}<li><a href="#{{ anchor }}">{{ text }}</a></li>
{% endfor %}</ul></nav>
{% endif %}</header>
<main>
{% for element in elements %}{{ element }}
{% endfor %}</main>
</body>
</html>
"""


def _anchors(parts: Sequence[Part]) -> dict[int, str]:
    """The anchor of the heading at each index; a second heading of the same text gets a number."""
    used: set[str] = set()
    out: dict[int, str] = {}
    for i, part in enumerate(parts):
        if isinstance(part, Heading):
            name, n = part.anchor, 2
            while name in used:
                name, n = f"{part.anchor}-{n}", n + 1
            used.add(name)
            out[i] = name
    return out


def _element(part: Part, anchor: str | None) -> str:
    if isinstance(part, (Table, Figure)):
        return part.html()
    if isinstance(part, Heading):
        return f'<h2 id="{html.escape(anchor or part.anchor)}">{html.escape(part.text)}</h2>'
    if isinstance(part, Code):
        return f"<pre><code>{html.escape(part.text)}</code></pre>"
    return f"<p>{html.escape(part)}</p>"


def render_page(title: str, parts: Sequence[Part], *, subtitle: str = "") -> str:
    """The HTML of a page; a plain string among the parts is a paragraph of text, not markup.

    Example:
        >>> page = render_page("Comparison", ["One seed is no evidence.", Table("", ("a",), ((1,),))])
        >>> "<script" in page, page.count("<table>")
        (False, 1)
    """
    import jinja2
    from markupsafe import Markup

    anchors = _anchors(parts)
    links = [(anchors[i], part.text) for i, part in enumerate(parts) if isinstance(part, Heading)]
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=False).from_string(_TEMPLATE)
    # Each element has escaped its own text; the title, the subtitle and the links are escaped by the template.
    elements = [Markup(_element(part, anchors.get(i))) for i, part in enumerate(parts)]
    return template.render(title=title, subtitle=subtitle, links=links if len(links) >= 3 else [], elements=elements)
