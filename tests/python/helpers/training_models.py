"""Training scripts: several models and losses; models that are stored, copied and changed."""

from __future__ import annotations

import copy
import io
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from training_base import Log, Wrap, batches, mlp, script, state

# ---- several models and losses ----


@script(6)
def adversaries_in_turn(wrap: Wrap) -> Log:
    maker, critic = mlp(3, 8, 4), mlp(4, 8, 1)
    make, judge = wrap(maker), wrap(critic)
    of_maker = torch.optim.Adam(maker.parameters(), lr=0.01)
    of_critic = torch.optim.Adam(critic.parameters(), lr=0.01)
    log: Log = []
    for real, noise in zip(batches(5, 8, 4), batches(5, 8, 3, seed=1), strict=True):
        of_critic.zero_grad()
        loss = F.softplus(judge(make(noise).detach())).mean() + F.softplus(-judge(real)).mean()
        loss.backward()
        of_critic.step()
        of_maker.zero_grad()
        fooled = F.softplus(-judge(make(noise))).mean()
        fooled.backward()
        of_maker.step()
        log += [loss.detach(), fooled.detach()]
    return [*log, *state(maker), *state(critic)]


@script(3)
def clipped_ratio_of_policies(wrap: Wrap) -> Log:
    """The update of proximal policy optimization, with an entropy bonus and a value loss."""
    trunk, policy, value = mlp(4, 8, 8), nn.Linear(8, 3), nn.Linear(8, 1)
    parameters = [*trunk.parameters(), *policy.parameters(), *value.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=0.01)

    def loss_of(x: torch.Tensor, action: torch.Tensor, old: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
        h = trunk(x)
        logs = policy(h).log_softmax(-1)
        ratio = (logs.gather(1, action[:, None])[:, 0] - old).exp()
        surrogate = torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain)
        entropy = -(logs.exp() * logs).sum(-1)
        return -surrogate.mean() - 0.01 * entropy.mean() + 0.5 * F.mse_loss(value(h)[:, 0], gain)

    fast, log = wrap(loss_of), []
    for x in batches(4, 8, 4):
        action = torch.arange(8) % 3
        loss = fast(x, action, torch.full((8,), -1.1), x.sum(1))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 0.5)
        optimizer.step()
        log.append(loss.detach())
    return [*log, *state(trunk), *state(policy), *state(value)]


@script(3)
def variational_autoencoder(wrap: Wrap) -> Log:
    encoder, decoder = mlp(4, 8, 4), mlp(2, 8, 4)

    def loss_of(x: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, log_variance = encoder(x).chunk(2, -1)
        z = mean + noise * (0.5 * log_variance).exp()
        prior = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(-1).mean()
        return F.mse_loss(decoder(z), x), prior

    fast, log = wrap(loss_of), []
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=0.01)
    for x, noise in zip(batches(4, 8, 4), batches(4, 8, 2, seed=1), strict=True):
        optimizer.zero_grad()
        error, prior = fast(x, noise)
        (error + 0.1 * prior).backward()
        optimizer.step()
        log += [error.detach(), prior.detach()]
    return [*log, *state(encoder), *state(decoder)]


@script(3)
def losses_in_turn(wrap: Wrap) -> Log:
    model, aid = mlp(4, 8, 3), nn.Linear(3, 1)
    fast = wrap(lambda x: ((y := model(x)), aid(y).square().mean()))
    for x in batches(4, 8, 4):
        y, other = fast(x)
        other.backward(retain_graph=True)
        F.cross_entropy(y, torch.arange(8) % 3).backward()
    return state(model) + state(aid)


@script(3)
def contrastive(wrap: Wrap) -> Log:
    model = mlp(4, 8, 4)

    def loss_of(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a, b = F.normalize(model(a), dim=-1), F.normalize(model(b), dim=-1)
        scores = a @ b.t() / 0.2
        same = torch.arange(len(scores))
        return (F.cross_entropy(scores, same) + F.cross_entropy(scores.t(), same)) / 2

    fast, log = wrap(loss_of), []
    for x in batches(4, 6, 4):
        loss = fast(x, x + 0.1)
        loss.backward()
        log.append(loss.detach())
    return [*log, *state(model)]


@script(3)
def mixed_up_pairs(wrap: Wrap) -> Log:
    model = mlp(4, 8, 3)

    def loss_of(x: torch.Tensor, target: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
        y = model(share * x + (1 - share) * x.flip(0))
        return share * F.cross_entropy(y, target) + (1 - share) * F.cross_entropy(y, target.flip(0))

    fast, log = wrap(loss_of), []
    for i, x in enumerate(batches(4, 6, 4)):
        loss = fast(x, torch.arange(6) % 3, torch.tensor(0.3 + 0.1 * i))
        loss.backward()
        log.append(loss.detach())
    return [*log, *state(model)]


# ---- models that are stored, copied and changed ----


@script(4)
def state_saved_and_loaded(wrap: Wrap) -> Log:
    model = mlp(4, 8, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    fast, log = wrap(model), []
    kept = io.BytesIO()
    for i, x in enumerate(batches(6, 8, 4)):
        optimizer.zero_grad()
        fast(x).square().mean().backward()
        optimizer.step()
        if i == 2:
            torch.save([model.state_dict(), optimizer.state_dict()], kept)
        if i == 4:
            kept.seek(0)
            for thing, values in zip([model, optimizer], torch.load(kept), strict=True):
                thing.load_state_dict(values)
        log += state(model)
    return log


@script(3)
def a_copy_of_the_model(wrap: Wrap) -> Log:
    model = mlp(4, 8, 1)
    fast = wrap(model)
    xs = batches(4, 8, 4)
    for x in xs:
        fast(x).square().mean().backward()
    twin = copy.deepcopy(model)
    other = wrap(twin)
    for x in xs:
        other(x).mean().backward()
    return state(model) + state(twin)


@script(3)
def weights_replaced(wrap: Wrap) -> Log:
    model = mlp(4, 8, 1)
    fast = wrap(model)
    for i, x in enumerate(batches(6, 8, 4)):
        if i == 3:
            model[0].weight = nn.Parameter(torch.ones(8, 4))
        fast(x).square().mean().backward()
    return state(model)


@script(4)
def weights_set_by_data(wrap: Wrap) -> Log:
    model = mlp(4, 8, 1)
    fast = wrap(model)
    for i, x in enumerate(batches(5, 8, 4)):
        model[0].weight.data = torch.full((8, 4), 0.1 * i)
        fast(x).square().mean().backward()
    return state(model)


@script(4)
def weights_initialized_again(wrap: Wrap) -> Log:
    model = mlp(4, 8, 1)
    fast = wrap(model)
    for x in batches(5, 8, 4):
        nn.init.xavier_uniform_(model[0].weight)
        fast(x).square().mean().backward()
    return state(model)


@script(3)
def other_sizes_of_batches(wrap: Wrap) -> Log:
    model = mlp(4, 8, 1)
    fast = wrap(model)
    for rows in (8, 3, 8, 3, 8):
        fast(batches(1, rows, 4)[0]).square().mean().backward()
    return state(model)


@script(4)
def in_double_precision(wrap: Wrap) -> Log:
    model = mlp(4, 8, 1).double()
    fast = wrap(model)
    for x in batches(5, 8, 4):
        fast(x.double()).square().mean().backward()
    return state(model)


@script(3)
def in_place_inside(wrap: Wrap) -> Log:
    model = mlp(4, 8, 1)

    def hidden(x: torch.Tensor) -> torch.Tensor:
        h = model[0](x)
        h.mul_(0.5).add_(1)
        h[:, 0] = 1
        h[:, 1:3] += h[:, 3:5]
        return model[2](h)

    fast = wrap(hidden)
    for x in batches(4, 8, 4):
        fast(x).square().mean().backward()
    return state(model)


@script(3)
def a_penalty_on_the_weights(wrap: Wrap) -> Log:
    model = mlp(4, 8, 1)
    fast = wrap(lambda x: model(x).square().mean() + 0.01 * sum(p.square().sum() for p in model.parameters()))
    for x in batches(4, 8, 4):
        fast(x).backward()
    return state(model)


@script(3)
def a_loss_and_its_parts(wrap: Wrap) -> Log:
    model = mlp(4, 8, 2)

    def parts(x: torch.Tensor) -> dict[str, torch.Tensor]:
        y = model(x)
        found = {"fit": y[:, 0].square().mean(), "rest": y[:, 1].abs().mean()}
        return found | {"all": found["fit"] + 0.1 * found["rest"]}

    fast, log = wrap(parts), []
    for x in batches(4, 8, 4):
        found = fast(x)
        found["all"].backward()
        log += [t.detach() for t in found.values()]
    return [*log, *state(model)]


@script(3)
def straight_through(wrap: Wrap) -> Log:
    model = mlp(4, 8, 4)

    def coded(x: torch.Tensor) -> torch.Tensor:
        y = model(x)
        return y + ((y * 4).round() / 4 - y).detach()

    fast = wrap(coded)
    for x in batches(4, 8, 4):
        fast(x).square().mean().backward()
    return state(model)


@script(3)
def a_step_of_sgd_by_hand(wrap: Wrap) -> Log:
    model = mlp(4, 8, 1)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        grads = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for p, g in zip(model.parameters(), grads, strict=True):
                p.sub_(0.1 * g)
        return loss.detach()

    fast = wrap(step)
    return [*(fast(x) for x in batches(6, 8, 4)), *state(model)]


@script(3)
def the_whole_step_accumulates(wrap: Wrap) -> Log:
    model = mlp(4, 8, 1)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        return loss.detach()

    fast, log = wrap(step), []
    for x in batches(6, 8, 4):
        log += [fast(x), *state(model)]
    return log


@script(3)
def a_detached_state_between_calls(wrap: Wrap) -> Log:
    """Truncated backpropagation through time."""
    cell, head = nn.GRUCell(4, 6), nn.Linear(6, 1)
    fast = wrap(lambda x, h: ((new := cell(x, h)), head(new).square().mean()))
    h = torch.zeros(8, 6)
    for x in batches(5, 8, 4):
        h, loss = fast(x, h.detach())
        loss.backward()
    return [h.detach(), *state(cell), *state(head)]


@script(3)
def a_state_that_is_not_detached(wrap: Wrap) -> Log:
    cell = nn.GRUCell(4, 6)
    fast = wrap(cell)
    h = torch.zeros(8, 6)
    for x in batches(5, 8, 4):
        h = fast(x, h)
    h.square().mean().backward()
    return [h.detach(), *state(cell)]


@script(3)
def a_function_of_ones_own(wrap: Wrap) -> Log:
    class Cubed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return g * 3 * ctx.saved_tensors[0] ** 2

    model = mlp(4, 8, 1)
    fast = wrap(lambda x: Cubed.apply(model(x)).mean())
    for x in batches(4, 8, 4):
        fast(x).backward()
    return state(model)


@script(0, "hooks for saved tensors are active")
def inside_a_checkpoint(wrap: Wrap) -> Log:
    model = mlp(4, 8, 1)
    fast = wrap(model)
    for x in batches(4, 8, 4):
        torch.utils.checkpoint.checkpoint(fast, x.requires_grad_(), use_reentrant=False).mean().backward()
    return state(model)
