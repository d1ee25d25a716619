"""Parameters the optimiser will spoil: fixed tables that train, and learned numbers that cast, or decay, with the weights."""

from collections.abc import Iterator

import torch
from torch import nn

from eigenclock.audit.measure.frequencies import base_of
from eigenclock.audit.probe import Probe
from eigenclock.audit.report import Finding
from eigenclock.audit.rules.rule import Rule
from eigenclock.encodings import Parameter

SOURCE = "weight decay pulls every parameter of two axes and more to 0 in the usual recipes, frequencies and slopes among them"
NAMES = ("freq", "theta", "slope", "decay", "rate", "alibi", "inv_freq", "log_freq", "gamma_pos", "angle")

TABLES = ("inv_freq", "freqs", "theta")


def _applies(probe: Probe) -> str | None:
    if probe.module is None:
        return "it is no module"
    held = any(True for _ in _positional(probe.module)) or any(True for _ in _kept(probe.module))
    return None if held else "it has no positional parameters, and keeps no table in its state"


def _positional(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    ours = {id(p) for m in module.modules() if isinstance(m, Parameter) for p in m.parameters()}
    for name, parameter in module.named_parameters():
        last = name.rsplit(".", 1)[-1].lower()
        if id(parameter) not in ours and any(word in last for word in NAMES):
            yield name, parameter


def _kept(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Tables of frequencies in the state dict: fixed numbers, which a checkpoint in another dtype overwrites with rounded ones."""
    ours = {id(b) for m in module.modules() if isinstance(m, Parameter) for b in m.buffers()}
    kept = set(module.state_dict())
    for name, buffer in module.named_buffers():
        last = name.rsplit(".", 1)[-1].lower()
        if name in kept and id(buffer) not in ours and buffer.is_floating_point() and any(word in last for word in TABLES):
            yield name, buffer


def _check(probe: Probe) -> list[Finding]:
    assert probe.module is not None
    found = []
    for name, buffer in _kept(probe.module):
        where = {"buffer": name, "shape": list(buffer.shape)}
        message = (
            f"{name} is a persistent buffer: casts of the module round it, and a checkpoint in 16 bits brings rounded frequencies back"
        )
        advice = "register it with persistent=False, and compute it in float32 where the module is built"
        found.append(Finding("optimiser", "advice", message, None, None, where, advice, SOURCE))
    for name, parameter in _positional(probe.module):
        where = {"parameter": name, "shape": list(parameter.shape)}
        flat = parameter.detach().double().cpu().flatten()
        if parameter.requires_grad and parameter.ndim == 1 and base_of(flat.abs()) is not None:
            message = (
                f"{name} holds the fixed table {float(flat[0]):.3g} .. {float(flat[-1]):.3g} and requires a gradient: training moves it"
            )
            advice = "make it a buffer that is not persistent, or set requires_grad to False; where it should train, name it so"
            found.append(Finding("optimiser", "risk", message, None, None, where, advice, SOURCE))
        elif parameter.requires_grad and parameter.ndim >= 2:
            message = f"{name} has {parameter.ndim} axes: optimisers that choose by axes decay it, or give it to Muon"
            advice = "put positional parameters into a group without weight decay and with a learning rate of their own"
            found.append(Finding("optimiser", "risk", message, parameter.ndim, 1, where, advice, SOURCE))
        if parameter.requires_grad and parameter.dtype in (torch.bfloat16, torch.float16):
            message = (
                f"{name} is trained in {str(parameter.dtype).removeprefix('torch.')}: a step below 2^-8 of it is lost, and its digits are"
            )
            found.append(Finding("optimiser", "risk", message, None, None, where, "keep positional parameters in float32", SOURCE))
    return found


RULE = Rule("optimiser", "will the optimiser spoil its parameters", _applies, _check)
