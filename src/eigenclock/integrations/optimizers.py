"""What an optimiser must not do to positional parameters: decay them, or orthogonalise them as if they were matrices."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from eigenclock.encodings import Encoding
from eigenclock.errors import ConfigError


def positional_parameters(model: nn.Module) -> list[nn.Parameter]:
    """What the encodings inside a model learn: frequencies, rates, slopes, and the weights of learned clocks.

    >>> import eigenclock as ec
    >>> [p.shape for p in positional_parameters(nn.ModuleList([ec.rope(8, learn="freq"), nn.Linear(2, 2)]))]
    [torch.Size([4])]
    """
    found = {id(p): p for module in model.modules() if isinstance(module, Encoding) for p in module.parameters() if p.requires_grad}
    return list(found.values())


def exempt(optimizer: Any, model: nn.Module, *, lr: float | None = None) -> None:
    """Move what encodings learn into a group of its own without weight decay, treated by AdamW where the optimiser has several ways.

    Rates and frequencies are kept as logarithms: weight decay pulls them towards 1 per unit of time, which is no neutral value, and
    optimisers that decay all tensors of two axes (nanoGPT) do it to tables with one row per head. Muon (nanochat) takes a vector of rates
    for a matrix.

    Args:
        optimizer: a torch optimiser; groups may carry ``kind``, as nanochat's do.
        model: where the encodings are installed.
        lr: learning rate of the group (default: that of the group they were in; 1e-3 where that was Muon's).
    Raises: ConfigError where the optimiser does not hold them.

    >>> import torch, eigenclock as ec
    >>> enc = ec.rope(8, heads=2, learn="freq")
    >>> optimizer = torch.optim.AdamW(enc.parameters(), weight_decay=0.1)
    >>> exempt(optimizer, enc)
    >>> [group["weight_decay"] for group in optimizer.param_groups]
    [0.0]
    """
    wanted = {id(p): p for p in positional_parameters(model)}
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if wanted.keys() - held:
        raise ConfigError(
            f"got an optimiser without {len(wanted.keys() - held)} of the {len(wanted)} tensors that encodings learn; "
            "expected one made after install()"
        )
    moved: list[dict[str, Any]] = []
    adamw = next((group for group in optimizer.param_groups if group.get("kind") == "adamw"), None)
    for group in optimizer.param_groups:
        ours = [p for p in group["params"] if id(p) in wanted]
        if not ours:
            continue
        group["params"] = [p for p in group["params"] if id(p) not in wanted]
        muon = group.get("kind") == "muon"
        base = adamw if muon and adamw is not None else group
        rate = lr if lr is not None else 1e-3 if muon else group["lr"]
        options = {name: value for name, value in base.items() if name != "params"} | {"weight_decay": 0.0, "lr": rate}
        moved.append(options | ({"initial_lr": rate} if "initial_lr" in base else {}) | {"params": ours})
    optimizer.param_groups[:] = [group for group in optimizer.param_groups if group["params"]]
    for group in moved:
        optimizer.add_param_group(group)


def scale_rate(optimizer: torch.optim.Optimizer, parameters: Iterable[nn.Parameter], scale: float) -> None:
    """Multiply the learning rate of the groups that hold some parameters by a factor, during each step alone.

    For loops that write one rate into all groups before every step. Torch's own schedulers keep the rate of each group and need no such
    thing. The factor belongs to this optimiser and is in no state dict: call it again where a run is resumed.

    >>> import torch
    >>> p = nn.Parameter(torch.ones(1))
    >>> optimizer = torch.optim.SGD([p], lr=1.0)
    >>> scale_rate(optimizer, [p], 0.25)
    >>> p.grad = torch.ones(1)
    >>> optimizer.step()
    >>> float(p.detach()), optimizer.param_groups[0]["lr"]
    (0.75, 1.0)
    """
    wanted = {id(p) for p in parameters}
    given: list[tuple[dict[str, Any], Any]] = []

    def before(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        given[:] = [(group, group["lr"]) for group in optimizer.param_groups if any(id(p) in wanted for p in group["params"])]
        for group, rate in given:
            group["lr"] = rate * scale

    def after(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        for group, rate in given:
            group["lr"] = rate

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)
