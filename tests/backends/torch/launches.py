"""Counts what a captured step would launch on a GPU, from the operations of one step on the CPU.

Views launch nothing. A kernel of Triton is one launch, whatever its interpreter computes.
"""

from contextlib import contextmanager

from torch.utils._python_dispatch import TorchDispatchMode

# Operations without a launch, beside views: room in memory, and what only names a tensor again.
SILENT = ("aten.empty", "aten.detach", "aten.alias", "aten._unsafe_view", "aten.lift_fresh", "aten.new_empty")
PRODUCTS = {
    "aten.mm": 1,
    "aten.addmm": 2,
    "_product_parts": 1,
}  # the place of the matrix of weights among the arguments


class Launches(TorchDispatchMode):
    """Counts inside of ``with``.

    Attributes:
        names: Of what was launched, in order.
        weight_bytes: Of the matrices that products read.
    """

    def __init__(self):
        super().__init__()
        self.names, self.weight_bytes, self._inside = [], 0, False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = str(func.overloadpacket)
        if not self._inside and not func.is_view and name not in SILENT:
            self.names.append(name)
            if name in PRODUCTS:
                self._read(args[PRODUCTS[name]])
        return func(*args, **(kwargs or {}))

    def _read(self, weight):
        self.weight_bytes += weight.numel() * weight.element_size()

    @contextmanager
    def of_triton(self, monkeypatch):
        """Count calls of interpreted kernels as one launch each."""
        from triton.runtime.interpreter import GridExecutor

        run = GridExecutor.__call__

        def counted(executor, *args, **kwargs):
            self.names.append(name := executor.fn.__name__)
            if name in PRODUCTS:
                self._read(args[PRODUCTS[name]])
            self._inside = True
            try:
                return run(executor, *args, **kwargs)
            finally:
                self._inside = False

        with monkeypatch.context() as patch:
            patch.setattr(GridExecutor, "__call__", counted)
            yield
