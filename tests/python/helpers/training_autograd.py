"""Training scripts: autograd around a call."""

from __future__ import annotations

import threading

import torch
import torch.nn.functional as F

from training_base import Log, Wrap, batches, fit, mlp, script, state

# ---- autograd around a call ----


@script(3)
def hooks_on_tensors(wrap: Wrap) -> Log:
    fast, log = wrap(lambda x, w: (x * w).sin()), []

    def note(g: torch.Tensor) -> None:
        log.append(g.sum())

    for x in batches(4, 3, 4):
        x.requires_grad_()
        w = torch.ones(4, requires_grad=True)
        y = fast(x, w)
        y.register_hook(note)
        x.register_hook(lambda g: g * 2)
        y.sum().backward()
        log += [x.grad, w.grad]
    return log


@script(2)
def hooks_on_parameters(wrap: Wrap) -> Log:
    model = mlp(4, 8, 1)
    log: Log = []
    model[0].weight.register_hook(lambda g: log.append(g.norm()))
    model[2].bias.register_post_accumulate_grad_hook(lambda p: log.append(p.grad.clone()))
    return fit(model, wrap(model), torch.optim.SGD(model.parameters(), lr=0.1)) + log


@script(3)
def optimizer_in_hooks(wrap: Wrap) -> Log:
    """Each parameter is updated as soon as its gradient is there; the hooks come after the recording."""
    model = mlp(4, 8, 1)
    fast = wrap(model)
    xs = batches(5, 8, 4)
    fast(xs[0])

    def update(p: torch.Tensor) -> None:
        p.data.sub_(0.1 * p.grad)
        p.grad = None

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(update)
    for x in xs:
        fast(x).square().mean().backward()
    return state(model)


@script(4)
def forward_hooks_of_modules(wrap: Wrap) -> Log:
    model = mlp(4, 8, 1)
    model[0].register_forward_hook(lambda module, given, out: out * 2)
    return fit(model, wrap(model), torch.optim.SGD(model.parameters(), lr=0.1))


@script(0, "read of Tensor.grad_fn")
def full_backward_hooks_of_modules(wrap: Wrap) -> Log:
    model, log = mlp(4, 8, 1), []
    model[0].register_full_backward_hook(lambda module, given, out: log.append(out[0].sum()))
    return fit(model, wrap(model), torch.optim.SGD(model.parameters(), lr=0.1)) + log


@script(4)
def partial_gradients(wrap: Wrap) -> Log:
    model = mlp(4, 8, 1)
    fast, log = wrap(model), []
    for i, x in enumerate(batches(5, 8, 4)):
        parameters = list(model.parameters())
        log += torch.autograd.grad(fast(x).square().mean(), parameters[i % 3 :: 2])
    return log


@script(4)
def backward_into_some(wrap: Wrap) -> Log:
    model = mlp(4, 8, 1)
    fast = wrap(model)
    for i, x in enumerate(batches(5, 8, 4)):
        fast(x).square().mean().backward(inputs=[list(model.parameters())[i % 4]])
    return state(model)


@script(4)
def two_backwards_with_retain_graph(wrap: Wrap) -> Log:
    model = mlp(4, 8, 2)
    fast = wrap(model)
    for x in batches(5, 8, 4):
        y = fast(x)
        y[:, 0].mean().backward(retain_graph=True)
        y[:, 1].square().mean().backward()
    return state(model)


@script(4)
def a_graph_that_was_freed(wrap: Wrap) -> Log:
    model = mlp(4, 8, 1)
    fast, log = wrap(model), []
    for x in batches(5, 8, 4):
        loss = fast(x).square().mean()
        loss.backward()
        try:
            loss.backward()
        except RuntimeError as error:
            log.append(str(error)[:40])
    return [*log, *state(model)]


@script(2)
def requires_grad_flipped(wrap: Wrap) -> Log:
    model = mlp(4, 8, 1)
    fast, log = wrap(model), []
    for i, x in enumerate(batches(8, 8, 4)):
        model[0].requires_grad_(i % 4 < 2)
        model.zero_grad()
        fast(x).square().mean().backward()
        log += state(model)
    return log


@script(4)
def frozen_layers(wrap: Wrap) -> Log:
    model = mlp(4, 8, 8, 1)
    model[0].requires_grad_(False)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
    return fit(model, wrap(model), optimizer)


@script(3)
def an_exception_in_backward(wrap: Wrap) -> Log:
    model = mlp(4, 8, 1)
    fast, log = wrap(model), []

    def refuse(_: torch.Tensor) -> None:
        raise ValueError("no")

    for i, x in enumerate(batches(5, 8, 4)):
        model.zero_grad()
        y = fast(x)
        if i % 2:
            y.register_hook(refuse)
        try:
            y.square().mean().backward()
        except ValueError as error:
            log.append(str(error))
        log += state(model)
    return log


@script(3)
def a_write_between(wrap: Wrap) -> Log:
    fast, log = wrap(lambda x, w: (x * w).exp()), []
    for i, x in enumerate(batches(4, 3, 4)):
        w = torch.ones(4, requires_grad=True)
        y = fast(x, w)
        if i % 2:
            y.add_(1)
        try:
            y.sum().backward()
        except RuntimeError as error:
            log.append("modified by an inplace operation" in str(error))
        log.append(w.grad)
    return log


@script(3)
def no_grad_and_enable_grad_inside(wrap: Wrap) -> Log:
    model, target = mlp(4, 8, 2), mlp(4, 8, 2)

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            goal = target(x).softmax(-1)
            with torch.enable_grad():
                y = model(x)
        return F.kl_div(y.log_softmax(-1), goal, reduction="batchmean")

    fast, log = wrap(loss_of), []
    for x in batches(4, 8, 4):
        loss = fast(x)
        loss.backward()
        log.append(loss.detach())
    return [*log, *state(model), *state(target)]


@script(3)
def evaluation_between_steps(wrap: Wrap) -> Log:
    model = mlp(4, 8, 1)
    fast, log = wrap(model), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in batches(4, 8, 4):
        optimizer.zero_grad()
        fast(x).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            log.append(fast(x))
    return [*log, *state(model)]


@script(3)
def detached_target(wrap: Wrap) -> Log:
    """One step of a bootstrapped value, as in temporal differences."""
    model = mlp(4, 8, 1)
    fast = wrap(lambda x, after: (model(x) - (0.9 * model(after)).detach() - 1).square().mean())
    optimizer, log = torch.optim.SGD(model.parameters(), lr=0.05), []
    for x in batches(4, 8, 4):
        optimizer.zero_grad()
        loss = fast(x, x.flip(0))
        loss.backward()
        optimizer.step()
        log.append(loss.detach())
    return [*log, *state(model)]


@script(3)
def backward_on_other_threads(wrap: Wrap) -> Log:
    model = mlp(4, 8, 1)
    fast = wrap(model)
    for x in batches(4, 8, 4):
        loss = fast(x).square().mean()
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()
    return state(model)


@script(3)
def gradients_of_arguments(wrap: Wrap) -> Log:
    """A perturbation of the input in the direction of its gradient."""
    model = mlp(4, 8, 3)
    fast, log = wrap(model), []
    for x in batches(4, 5, 4):
        x.requires_grad_()
        (g,) = torch.autograd.grad(F.cross_entropy(fast(x), torch.tensor([0, 1, 2, 0, 1])), x)
        log.append(x.detach() + 0.1 * g.sign() * (g.abs() > 1e-6))
    return log


@script(0, "differentiated again")
def gradient_penalty(wrap: Wrap) -> Log:
    critic = mlp(4, 8, 1)
    fast, log = wrap(critic), []
    optimizer = torch.optim.Adam(critic.parameters(), lr=0.01)
    for x in batches(4, 8, 4):
        x.requires_grad_()
        (g,) = torch.autograd.grad(fast(x).sum(), x, create_graph=True)
        penalty = (g.norm(dim=1) - 1).square().mean()
        optimizer.zero_grad()
        penalty.backward()
        optimizer.step()
        log.append(penalty.detach())
    return [*log, *state(critic)]
