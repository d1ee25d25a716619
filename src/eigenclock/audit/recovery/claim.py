"""What was recovered, in the words of the config where those give the same scores, and for all heads that those measured stand for."""

from dataclasses import replace

from eigenclock.audit.heads import resized
from eigenclock.audit.probe import Probe
from eigenclock.audit.recovery.lags import lags_of
from eigenclock.audit.recovery.match import short
from eigenclock.audit.recovery.recover import Recovery, gives_back, limit_of, verified
from eigenclock.encodings import Encoding, encoding

WIDE = 128


def in_words_of(claimed: Encoding | None, probe: Probe, found: Recovery) -> Recovery:
    """The recovery with the spec that the config says, where it gives the scores that were measured.

    A table that follows a schedule is recovered as a row of numbers; its config names the schedule.
    """
    if found.spec is None:
        return found
    enc, nearest, notes = encoding(found.spec), found.nearest, found.notes
    few = claimed
    if claimed is not None and claimed.clock.sums:
        few = None  # a learned clock has no times to be verified with
    elif claimed is not None and probe.stands_for:
        few = resized(claimed, probe.heads, probe.kv_heads)
    if few is not None and (few.head_dim, few.heads, few.kv_heads or few.heads) == (probe.head_dim, probe.heads, probe.kv_heads):
        lags = lags_of(probe)
        gap = verified(probe, few, lags)
        if gap <= limit_of(lags):
            enc, nearest = few, f"{short(few)}, as its config says"
            notes = tuple(_again(note, gap) for note in notes)
    whole = None if probe.stands_for is None else resized(enc, *probe.stands_for)
    return replace(found, spec=str(whole or enc), nearest=nearest, notes=notes)


def unmeasured(claimed: Encoding | None, probe: Probe) -> Recovery | None:
    """What a config says, where wide heads would be measured on nothing but that: the scores of all their channels take minutes."""
    if claimed is None or not probe.as_read or probe.head_dim <= WIDE:
        return None
    said = f"the form is that of what the config asks for: on heads of more than {WIDE} channels it is not measured again"
    return Recovery(str(claimed.form), str(claimed), nearest=f"{short(claimed)}, as its config says", notes=(said,))


def _again(note: str, gap: float) -> str:
    """The note on how well the spec gives back the scores, for another spec."""
    words, comma, rest = note.partition(", at lags")
    return gives_back(gap) + comma + rest if words.startswith(gives_back(0.0).removesuffix("exactly")) else note
