"""Models by name, with random weights: `timm:vit_tiny_patch16_224`, `torchvision:resnet50`, `transformers:gpt2`.

The libraries are optional and nothing is downloaded: a model is made from its own code and configuration, seeded.
A source is a row of SOURCES; what it needs to know about a library stands in its functions and nowhere else.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import importlib
import importlib.util
import math
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .errors import BenchError
from .load import CaseSpec

SEED = 0
IMAGE_SIZE, LENGTH = 224, 128  # where neither the user nor the model says
MOST_PARAMETERS = 1_500_000_000  # in float32, copied for each variant and once in float64
_DECLARED: list[Any] = []  # torch forgets the declarations of a Library that is gone
CASE_FILE, CASE_NAME = "fastjit_model.py", "model"


@dataclass(frozen=True)
class ModelSpec:
    """A model as text and numbers, so that a fresh process can make the same one."""

    name: str  # SOURCE:MODEL
    batch: int = 1
    image_size: int | None = None
    length: int | None = None
    config: dict[str, Any] = field(default_factory=dict)  # what differs from the library's own configuration

    @property
    def parts(self) -> tuple[str, str]:
        source, colon, model = self.name.partition(":")
        if not colon or not model or source not in SOURCES:
            listed = ", ".join(f"{known}:{row.example}" for known, row in SOURCES.items())
            raise BenchError(f"--model {self.name}: which library? Write one of {listed}")
        return source, model


Input = tuple[Any, ...]


@dataclass(frozen=True)
class Made:
    """A module in eval mode and what makes its arguments for a batch."""

    module: Any
    inputs: Callable[[int], Input]


@dataclass(frozen=True)
class Source:
    """A library of models: the names it has, and how one is made."""

    example: str
    names: Callable[[Any], list[str]]
    make: Callable[[Any, str, ModelSpec], Made]


def make(spec: ModelSpec) -> Made:
    """The model with weights that depend on its name and configuration alone."""
    import torch

    library, source, name = _known(spec)
    torch.manual_seed(SEED)
    try:
        made = source.make(library, name, spec)
    except BenchError:
        raise
    except Exception as error:  # the library says in its own words what it does not take
        raise BenchError(f"--model {spec.name} could not be made: {_first_line(error)}") from error
    _enliven(made)
    made.module.eval()
    return made


def _enliven(made: Made) -> None:
    """Weights and statistics as after some training. Many models begin with branches and a head that are zero, and
    without the statistics of batch norm activations vanish with depth: results would be equal whatever is computed."""
    import torch

    torch.manual_seed(SEED)
    norms = [module for module in made.module.modules() if isinstance(module, torch.nn.modules.batchnorm._BatchNorm)]
    with torch.no_grad():
        for weight in made.module.parameters():
            if weight.is_floating_point() and weight.numel() and bool((weight == weight.flatten()[0]).all()):
                weight.add_(torch.randn_like(weight), alpha=0.05)
        if not norms:
            return
        made.module.eval()
        for norm in norms:
            norm.train()
            norm.momentum = None  # the mean of all calls, of which there is one
        made.module(*made.inputs(2))


def check(spec: ModelSpec) -> None:
    """Raises BenchError for a library that is missing and for a name that it does not have."""
    _known(spec)


def write_case(spec: ModelSpec, folder: str) -> CaseSpec:
    """A file with the model and its inputs: what `fastjit bench FILE.py::fn` and its fresh processes load."""
    path = Path(folder, CASE_FILE)
    fields = {key: value for key, value in asdict(spec).items() if key != "batch"}
    path.write_text(
        "from fastjit._bench.models import ModelSpec, make\n\n"
        f"_made = make(ModelSpec(**{fields!r}))\n{CASE_NAME} = _made.module\n\n\n"
        f"def {CASE_NAME}_args(batch={spec.batch}):\n    return _made.inputs(batch)\n"
    )
    return CaseSpec(str(path), CASE_NAME, label=spec.name)


def parse_config(text: str | None) -> dict[str, Any]:
    """`num_hidden_layers=4,hidden_size=128` to a dictionary; values are Python literals, else strings."""
    found: dict[str, Any] = {}
    for item in filter(None, (text or "").split(",")):
        key, equals, value = item.partition("=")
        if not equals or not key.strip().isidentifier() or not value.strip():
            raise BenchError(f"--config {text!r}: write --config num_hidden_layers=4,hidden_size=128")
        try:
            found[key.strip()] = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError):
            found[key.strip()] = value.strip()
    return found


def _known(spec: ModelSpec) -> tuple[Any, Source, str]:
    library_name, name = spec.parts
    source = SOURCES[library_name]
    try:
        library = library_of(library_name)
    except ImportError as error:
        raise BenchError(
            f"--model {spec.name} needs {library_name}, which does not import ({_first_line(error)}); "
            f"type: {_install(library_name)}"
        ) from error
    names = source.names(library)
    if name not in names:
        close = _close(name, names)
        hint = f"close to it are {', '.join(close)}" if close else f"a name that it has is {source.example}"
        raise BenchError(f"--model {spec.name}: {library_name} has no model '{name}' that is run here; {hint}")
    return library, source, name


def _close(name: str, names: list[str]) -> list[str]:
    """Names like it, or that begin like it: most say a size after what people remember."""

    def likeness(known: str) -> float:
        return max(difflib.SequenceMatcher(None, name, text).ratio() for text in (known, known[: len(name)]))

    ranked = sorted(((likeness(known), known) for known in names), key=lambda pair: (-pair[0], pair[1]))
    return [known for ratio, known in ranked[:4] if ratio >= 0.6]


def library_of(name: str) -> Any:
    """The imported library; ImportError where it is not there."""
    if name != "torchvision" and importlib.util.find_spec("torchvision") is not None:
        with contextlib.suppress(ImportError):
            library_of("torchvision")  # timm and transformers import it, and do not import where it does not
    try:
        return importlib.import_module(name)
    except RuntimeError as error:
        if "operator torchvision::nms does not exist" not in str(error):
            raise ImportError(str(error)) from error
    _declare_operators()
    return importlib.import_module(name)


def _declare_operators() -> None:
    """A torchvision built for CUDA beside a torch without it has no operators of its own, and then does not import for
    what it says of two of them: they are for detection, and no model here has any."""
    import torch

    declared: Any = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for operator in ("nms", "qnms"):
        declared.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _DECLARED.append(declared)
    for module in [known for known in sys.modules if known.partition(".")[0] == "torchvision"]:
        del sys.modules[module]


def _images(channels: int, height: int, width: int) -> Callable[[int], Input]:
    import torch

    def inputs(batch: int) -> Input:
        return (torch.randn(batch, channels, height, width, generator=torch.Generator().manual_seed(SEED)),)

    return inputs


def _tokens(vocabulary: int, length: int) -> Callable[[int], Input]:
    import torch

    def inputs(batch: int) -> Input:
        generator = torch.Generator().manual_seed(SEED)
        return (torch.randint(vocabulary, (batch, length), generator=generator),)

    return inputs


def _no_length(spec: ModelSpec) -> None:
    if spec.length is not None:
        raise BenchError(f"--length {spec.length}: {spec.name} takes images; give --image-size")


def _timm_names(timm: Any) -> list[str]:
    return list(timm.list_models())


def _timm(timm: Any, name: str, spec: ModelSpec) -> Made:
    _no_length(spec)
    size = spec.image_size
    try:
        module = timm.create_model(name, pretrained=False, **spec.config, **({"img_size": size} if size else {}))
    except TypeError:
        if not size:
            raise
        module = timm.create_model(name, pretrained=False, **spec.config)  # one that takes every size
    channels, height, width = module.pretrained_cfg.get("input_size", (3, IMAGE_SIZE, IMAGE_SIZE))
    return Made(module, _images(channels, size or height, size or width))


def _torchvision_names(torchvision: Any) -> list[str]:
    """Its classifiers: detection and segmentation models load weights for their backbones and take lists."""
    return list(torchvision.models.list_models(module=torchvision.models))


def _torchvision(torchvision: Any, name: str, spec: ModelSpec) -> Made:
    _no_length(spec)
    usual = 299 if name == "inception_v3" else IMAGE_SIZE
    config = dict(spec.config)
    if spec.image_size and name.startswith("vit_"):
        config["image_size"] = spec.image_size
    if name in ("googlenet", "inception_v3"):
        config.setdefault("init_weights", True)
    module = torchvision.models.get_model(name, weights=None, **config)
    size = spec.image_size or usual
    return Made(module, _images(3, size, size))


def _transformers_names(transformers: Any) -> list[str]:
    return list(transformers.models.auto.configuration_auto.CONFIG_MAPPING_NAMES)


def _transformers(transformers: Any, name: str, spec: ModelSpec) -> Made:
    """AutoModel of the type's default configuration; of an encoder-decoder its encoder. Results are plain tuples."""
    import torch

    config = transformers.AutoConfig.for_model(name, **spec.config)
    config.return_dict = False
    config.use_cache = False
    encoder_only = getattr(config, "is_encoder_decoder", False)
    _check_parameters(transformers, config, spec)
    torch.manual_seed(SEED)
    module = transformers.AutoModel.from_config(config)
    if encoder_only:
        module = module.get_encoder()
    wanted = module.main_input_name
    if wanted == "input_ids" and isinstance(getattr(config, "vocab_size", None), int):
        if spec.image_size is not None:
            raise BenchError(f"--image-size {spec.image_size}: {spec.name} takes tokens; give --length")
        most = getattr(config, "max_position_embeddings", None)
        length = spec.length or min(LENGTH, most if isinstance(most, int) and most > 0 else LENGTH)
        return Made(module, _tokens(config.vocab_size, length))
    if wanted == "pixel_values":
        _no_length(spec)
        size = spec.image_size or getattr(config, "image_size", None) or IMAGE_SIZE
        height, width = size if isinstance(size, (tuple, list)) else (size, size)
        return Made(module, _images(getattr(config, "num_channels", 3), height, width))
    raise BenchError(f"--model {spec.name} takes '{wanted}', for which no inputs are made; write FILE.py::fn instead")


def _check_parameters(transformers: Any, config: Any, spec: ModelSpec) -> None:
    """Counts on torch's meta device, where weights take no memory."""
    import copy

    import torch

    with torch.device("meta"):
        counted = transformers.AutoModel.from_config(copy.deepcopy(config))
    count = sum(math.prod(weight.shape) for weight in counted.parameters())
    if count > MOST_PARAMETERS:
        raise BenchError(
            f"--model {spec.name} has {count / 1e9:.1f} billion parameters by default, too many to copy for each "
            "variant; make it smaller, as in --config num_hidden_layers=4,hidden_size=256,intermediate_size=1024"
        )


def _first_line(error: BaseException) -> str:
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text}"[:200]


def _install(package: str) -> str:
    """torchvision names the one torch it goes with, which pip would bring over a CPU build: --no-deps keeps yours."""
    import torch

    minor = int(torch.__version__.split(".")[1]) + 15  # torchvision 0.28 is the one of torch 2.13
    vision = f"pip install --no-deps 'torchvision==0.{minor}.*' pillow"
    return {
        "timm": f"{vision} && pip install --no-deps timm && pip install pyyaml huggingface_hub safetensors",
        "torchvision": vision,
        "transformers": "pip install 'transformers>=5,<6'",
    }[package]


SOURCES = {
    "timm": Source("vit_tiny_patch16_224", _timm_names, _timm),
    "torchvision": Source("resnet50", _torchvision_names, _torchvision),
    "transformers": Source("gpt2", _transformers_names, _transformers),
}
