"""Layers of a model compiled by ``torch.compile``, and products that read the same input joined to one.

A layer's own code launches some forty kernels a layer on a GPU, most of which do next to nothing. Compiled, what stands
between two products is one kernel. Attention is left out of what is compiled, so that all layers share one code, and
all views (see ``attention``) call the same one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten
from transformers import AttentionInterface

from steadyrl.backends.torch.attention import NAME, attend
from steadyrl.core.plugins import require


def compile_layers(model: nn.Module, engine: str = "inductor") -> None:
    """Let the layers of a model run compiled; what cannot be compiled runs as it is."""
    AttentionInterface.register(NAME, torch.compiler.disable(attend))  # type: ignore[no-untyped-call]
    settings: Any = torch._dynamo.config
    settings.suppress_errors = True
    # Layers are read with and without gradients, by the sampler, without the adapter; some families have two kinds.
    settings.recompile_limit = max(settings.recompile_limit, 32)
    layer = require("transformers.modeling_layers").GradientCheckpointingLayer  # of which all decoder layers are
    options = {"post_grad_custom_pre_pass": _same_once()} if engine == "inductor" else None
    for module in model.modules():
        if isinstance(module, layer):
            module.compile(backend=engine, options=options)


@contextmanager
def eager() -> Iterator[None]:
    """Leave layers as they are inside."""
    with torch.compiler.set_stance("force_eager"):
        yield


def once(graph: torch.fx.Graph) -> None:
    """Let a graph compute once what it computes several times of the same inputs."""
    first_nodes: dict[Any, torch.fx.Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function" or node.is_impure():
            continue
        leaves, structure = tree_flatten((node.args, node.kwargs))
        key = (node.target, str(structure), *((type(leaf), leaf) for leaf in leaves))
        first = first_nodes.setdefault(key, node)
        if first is not node:
            node.replace_all_uses_with(first)
            graph.erase_node(node)


def _same_once() -> Any:
    """Return ``once`` as PyTorch's compiler wants it, with a name for its cache on disk."""
    passes = require("torch._inductor.custom_graph_pass")

    base: Any = passes.CustomGraphPass  # of a module that is loaded late: it takes long

    class SameOnce(base):  # type: ignore[misc]
        def __call__(self, graph: torch.fx.Graph) -> None:
            once(graph)

        def uuid(self) -> Any:
            return passes.get_hash_for_files((__file__,))

    return SameOnce()
