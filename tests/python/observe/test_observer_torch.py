"""The read observer on torch's own modules and functions: which are sound, and what their facts notice."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from observer_tools import built, observe, supported
from torch_host import TorchHost

pytestmark = supported


@pytest.fixture(scope="session")
def ext():
    return built()


def watch(ext, function, *args, **kwargs):
    with torch.no_grad():
        function(*args, **kwargs)  # lazy set-up of torch happens outside the observation
        seen = observe(ext, function, *args, host=TorchHost, **kwargs)
        expected = function(*args, **kwargs)
    if isinstance(expected, torch.Tensor):
        assert torch.equal(seen.result, expected)
    return seen


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
        self.acts = nn.ModuleDict({"relu": nn.ReLU()})
        self.scales = nn.ParameterList([torch.ones(4)])
        self.register_buffer("shift", torch.ones(4))
        self.norm = None

    def forward(self, x):
        for layer in self.layers:
            x = x + self.acts["relu"](layer(x))
        if self.norm is not None:
            x = self.norm(x)
        return x * self.scales[0] + self.shift + self.layers[1](x) * len(self.layers)


X, B = torch.ones(4, 4), torch.ones(2, 3, 4)
MODULES = {
    "linear": (nn.Linear(4, 4), (X,)),
    "sequential": (nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 4), nn.Softmax(-1)), (X,)),
    "dropout": (nn.Dropout().eval(), (X,)),
    "batch norm": (nn.BatchNorm1d(4).eval(), (X,)),
    "group norm": (nn.GroupNorm(2, 4), (X,)),
    "conv": (nn.Conv2d(1, 2, 3, padding=1), (X[None, None],)),
    "pool": (nn.Sequential(nn.MaxPool2d(2), nn.AvgPool2d(2), nn.Flatten()), (X[None, None],)),
    "embedding": (nn.Embedding(5, 4), (torch.tensor([1, 2]),)),
    "lstm cell": (nn.LSTMCell(4, 4), (X,)),
    "gru cell": (nn.GRUCell(4, 4), (X,)),
    "rnn cell": (nn.RNNCell(4, 4), (X,)),
    "attention": (nn.MultiheadAttention(4, 2).eval(), (B, B, B)),
    "encoder layer": (nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).eval(), (B,)),
    "encoder": (nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 2).eval(), (B,)),
    "containers": (Residual(), (X,)),
}


@pytest.mark.parametrize("name", MODULES)
def test_module_is_sound(ext, name):
    module, args = MODULES[name]
    seen = watch(ext, module, *args)
    assert seen.unsound == ""
    assert seen.facts.check()
    used = {id(tensor) for _, tensor in seen.tensors}
    assert used >= {id(p) for p in module.parameters()}
    names = {label for label, _ in seen.tensors}
    assert names >= {f"self.{n}" for n, _ in module.named_parameters()}


FUNCTIONS = {
    "gelu": lambda x: F.gelu(x, approximate="tanh"),
    "relu": lambda x: F.relu(x) + F.silu(x) + F.leaky_relu(x) + F.hardtanh(x) + F.softplus(x) + F.elu(x),
    "rows": lambda x: (
        F.softmax(x, -1) + F.log_softmax(x, -1) + F.layer_norm(x, (4,)) + F.rms_norm(x, (4,)) + F.normalize(x)
    ),
    "train flags": lambda x: F.dropout(x, 0.5, False) + F.batch_norm(x, torch.zeros(4), torch.ones(4)),
    "losses": lambda x: F.mse_loss(x, x) + F.cross_entropy(x, torch.tensor([0, 1, 2, 3])) + F.huber_loss(x, x),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x),
    "reflected": lambda x: 2 - x**2 + 1 / (x + 1) + 2**x,
    "shapes": lambda x: x.split(2)[0].sum(dim=0, keepdim=True) + x.T.reshape(4, -1).permute(1, 0).mean() * x.shape[0],
    "tuples": lambda x: (
        x.max(dim=0).values + torch.cat(x.chunk(2), dim=1)[:, None, 1:3].to(torch.float16).float().sum()
    ),
    "masks": lambda x: torch.where(x > 0, x, -x).clone().masked_fill_(x > 1, 0.0),
    "factories": lambda x: x + torch.zeros(4, device=x.device, dtype=x.dtype) + torch.arange(4) + torch.full((4,), 2.0),
    "einsum": lambda x: torch.einsum("ij,jk->ik", x, x),
    "iteration": lambda x: [row * 2 for row in x][-1] + len(x) + x.size(0),
    "norm": lambda x: x.norm() + torch.norm(x, dim=1) + torch.linalg.norm(x),
    "pooling": lambda x: F.max_pool2d(x[None, None], 2) + F.interpolate(x[None, None], scale_factor=0.5),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_is_sound(ext, name):
    seen = watch(ext, FUNCTIONS[name], X)
    assert seen.unsound == ""
    assert seen.facts.check()


def test_grad_modes_inside(ext):
    def f(x):
        with torch.no_grad():
            y = x * 2
        with torch.enable_grad():
            return y + x

    seen = watch(ext, f, X)
    assert seen.unsound == ""


def test_decorated_helpers(ext):
    @torch.no_grad()
    def helper(x):
        return x * 2

    def f(x):
        return helper(x) + 1

    seen = watch(ext, f, X)
    assert seen.unsound == ""
    assert any("cell func is function" in line for line in seen.facts.describe())


def test_module_as_argument_names_its_tensors(ext):
    def f(model, x):
        return model(x)

    seen = watch(ext, f, Residual(), X)
    assert seen.unsound == ""
    assert {"model.layers.0.weight", "model.scales.0", "model.shift"} <= {name for name, _ in seen.tensors}


DOORS = {
    "data": (lambda x: x.data, "read of Tensor.data at test_observer_torch.py"),
    "grad": (lambda x: x.grad, "read of Tensor.grad at test_observer_torch.py"),
    "numpy": (lambda x: x.numpy(), "use of a tensor outside operators by TensorBase.numpy at"),
    "tolist": (lambda x: x.tolist(), "use of a tensor outside operators by TensorBase.tolist at"),
    "data_ptr": (lambda x: x.data_ptr(), "use of a tensor outside operators by TensorBase.data_ptr at"),
}


@pytest.mark.parametrize("name", DOORS)
def test_doors_out_of_torch_are_unsound(ext, name):
    function, sentence = DOORS[name]
    assert sentence in observe(ext, function, X, host=TorchHost).unsound


def replace_weight(net):
    net[0].weight = nn.Parameter(torch.zeros(4, 4))


CHANGES = {  # what a user does to the model, and the words of the fact that fails
    "parameter": (replace_weight, "self.0.weight is another Parameter"),
    "train mode": (lambda net: net.train(), "self.2.training was False, is True"),
    "layer": (lambda net: net.__setitem__(1, nn.ReLU()), "self.1 was GELU, is ReLU"),
    "appended": (lambda net: net.append(nn.ReLU()), "the keys of self._modules changed"),
    "hook": (lambda net: net[0].register_forward_hook(lambda *a: None), "self.0._forward_hooks was empty, is not"),
    "forward": (lambda net: setattr(net[1], "forward", abs), "self.1.forward was absent"),
    "setting": (lambda net: setattr(net[1], "approximate", "tanh"), "self.1.approximate was 'none', is 'tanh'"),
    "bias removed": (lambda net: setattr(net[0], "bias", None), "self.0.bias was Parameter, is None"),
    "probability": (lambda net: setattr(net[2], "p", 0.25), "self.2.p was 0.5, is 0.25"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_the_model_is_noticed(ext, name):
    change, words = CHANGES[name]
    net = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Dropout()).eval()
    seen = watch(ext, net, X)
    assert seen.unsound == ""
    change(net)
    assert not seen.facts.check()
    assert words in seen.facts.first_failure()


def test_global_hook_is_noticed(ext):
    seen = watch(ext, nn.Linear(4, 4), X)
    net = seen  # keeps the facts; the layer itself is gone
    assert not net.facts.check()
    layer = nn.Linear(4, 4)
    seen = watch(ext, layer, X)
    handle = nn.modules.module.register_module_forward_hook(lambda *a: None)
    try:
        assert "_global_forward_hooks was empty, is not" in seen.facts.first_failure()
    finally:
        handle.remove()
    assert seen.facts.check()


def test_patched_torch_function_is_noticed(ext, monkeypatch):
    def f(x):
        return torch.sin(x)

    seen = watch(ext, f, X)
    monkeypatch.setattr(torch, "sin", torch.cos)
    assert "torch.sin is another builtin_function_or_method" in seen.facts.first_failure()
    monkeypatch.undo()
    assert seen.facts.check()


def test_lists_and_weak_references_of_a_module_are_facts(ext):
    lstm = nn.LSTM(4, 4)
    seen = watch(ext, lstm, B)
    lstm._flat_weights[1] = nn.Parameter(torch.ones_like(lstm._flat_weights[1]))
    assert "self._flat_weights[1] is another Parameter" in seen.facts.first_failure()


def test_many_layers_are_recorded_and_checked(ext):
    net = nn.Sequential(*[nn.Linear(4, 4) for _ in range(250)])
    seen = watch(ext, net, X)
    assert seen.unsound == ""
    assert len(seen.tensors) == 500
    assert seen.facts.check_many(100) == 100
