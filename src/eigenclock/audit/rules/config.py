"""The config as text: keys that contradict each other, mean nothing, or have no effect."""

import warnings

from eigenclock.audit.probe import Probe
from eigenclock.audit.report import Finding
from eigenclock.audit.rules.rule import Rule
from eigenclock.encodings.config import encodings
from eigenclock.encodings.config.families import HALF, INTERLEAVED, ROTARY_TOP
from eigenclock.encodings.config.section import SECTION_KEYS
from eigenclock.errors import ConfigError, EigenclockError

SOURCE = "every key of a rotary section is used, or named"
SIZES = ("head_dim", "hidden_size", "num_attention_heads", "num_key_value_heads")
WORDS = (*(key for key in (*SECTION_KEYS, *ROTARY_TOP) if key not in ("type", "factor")), "rotary width", "factor=")

EVEN = "expected an even width"
UNSAID = ") without rope_theta or rope_parameters"
_ELSEWHERE = ("depends on the length", "is not known here")  # other rules say it, or it says something of what is read here


def _applies(probe: Probe) -> str | None:
    return None if probe.config is not None else "it has no config"


def _check(probe: Probe) -> list[Finding]:
    if probe.encodings is not None:
        return [_warned(text) for text in probe.encodings.warnings if not any(words in text for words in _ELSEWHERE)]
    if not probe.refused or probe.outside:
        return []
    text = probe.refused
    kind = str((probe.config or {}).get("model_type") or "")
    known = not kind or kind in HALF | INTERLEAVED  # of others it is not known here which keys they need
    sizes = any(word in text.split(";")[0] for word in SIZES) or "in the call" in text
    sizes = sizes and EVEN not in text  # no size that could be given would make it even
    known = known and not (UNSAID in text and not kind)  # nothing says that such a config is one of a rotary model
    if known and not sizes and any(word in text for word in (*WORDS, EVEN)) and (EVEN in text or _contradicts(probe)):
        advice = "correct the key that is named: code that reads it without complaint turns by something else"
        return [Finding("config", "fault", f"the config does not hold together: {text}", None, None, {}, advice, SOURCE)]
    return [Finding("config", "advice", f"the config is not one that is read here: {text}", None, None, {}, "", SOURCE)]


def _contradicts(probe: Probe) -> bool:
    """Whether what stands in the config is refused as wrong, and not as something that is merely not read here."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            encodings(probe.config, head_dim=None if probe.config and "head_dim" in probe.config else probe.head_dim)
    except ConfigError:
        return True
    except EigenclockError:
        return False
    return False


def _warned(text: str) -> Finding:
    severity = "risk" if "is used, but" in text else "advice"
    return Finding("config", severity, text, None, None, {}, "say in the config what the model was trained with, and nothing else", SOURCE)


RULE = Rule("config", "does every key of its config mean something, and one thing", _applies, _check)
