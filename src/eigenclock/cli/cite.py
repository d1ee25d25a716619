"""``eigenclock cite``: BibTeX for what an encoding is made of."""

import json
from pathlib import Path

from eigenclock.encodings.cite import references
from eigenclock.present import write_whole


class Options:
    """Print BibTeX for the recipes, schedules and clock of an encoding, and for the theorem behind them.

    Args:
        spec: A spec such as "rope(theta=500000) * alibi", or a JSON file of one; it needs no sizes.
        out: Write the entries to this file instead.
        json: Print the entries as JSON, and nothing else, on stdout.
    """

    # A class of its own rather than a dataclass, because the spec is positional.
    def __init__(self, spec: str, /, *, out: Path | None = None, json: bool = False) -> None:
        self.spec, self.out, self.json = spec, out, json


def run(options: Options) -> int:
    """Collects the entries and prints them."""
    found = references(options.spec)
    text = "\n\n".join(reference.text() for reference in found)
    if options.out is not None:
        write_whole(options.out, text + "\n")
    if options.json:
        print(json.dumps({"spec": options.spec, "references": [reference.to_dict() for reference in found]}, indent=1))
    elif options.out is None:
        print(text)
    return 0
