"""Few of pynade's own functions lie between `score_samples` and the arithmetic."""

import sys
from pathlib import Path

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

import pynade
from tests.estimators.cases import binary, make, real

SOURCE = Path(pynade.__file__).parent
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "linalg_solve_triangular", "_linalg_solve_ex")
INLINE = ("<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>")  # parts of a function, not calls
MOST = 4


def functions_below_score_samples(frame):
    """pynade's functions on the stack from `score_samples` (left out) to this frame; None if it is not there.

    Kernels are the arithmetic itself and are left out.
    """
    names = []
    while frame is not None:
        path, name = Path(frame.f_code.co_filename), frame.f_code.co_name
        if name == "score_samples" and path.parent == SOURCE / "estimators":
            return names[::-1]
        own = SOURCE in path.parents and path.parent != SOURCE / "kernels"
        if own and name not in INLINE:
            names.append(f"{path.stem}.{name}")
        frame = frame.f_back
    return None


class Recorder(TorchDispatchMode):
    """Records the path to every matrix product on a large tensor, and to every call of a kernel."""

    def __init__(self, large):
        super().__init__()
        self.large, self.paths = large, []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        sizes = [each.numel() for each in args if hasattr(each, "numel")]
        if function.overloadpacket.__name__ in PRODUCTS and max(sizes) >= self.large:
            self.record(sys._getframe(1))
        return function(*args, **kwargs or {})

    def record(self, frame):
        path = functions_below_score_samples(frame)
        if path is not None:
            self.paths.append(path)

    def call(self, frame, event, argument):
        """For `sys.setprofile`: kernels of numba run no torch operation."""
        if event == "call" and Path(frame.f_code.co_filename).parent == SOURCE / "kernels":
            self.record(frame)


def longest_path(model, X):
    with Recorder(large=X.size) as recorder:
        before = sys.getprofile()
        sys.setprofile(recorder.call)
        try:
            model.score_samples(X)
        finally:
            sys.setprofile(before)
    assert recorder.paths, "no arithmetic was seen"
    return max(recorder.paths, key=len)


CASES = ("nade", "rnade", "deepnade", "bernoullimixture", "gaussianmixture")


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("n", [400, 1], ids=["table", "row"])
def test_at_most_four_calls_from_score_samples_to_the_arithmetic(name, n):
    X = real(400) if name in ("rnade", "gaussianmixture") else binary(400)
    path = longest_path(make(name).fit(X), X[:n])
    assert len(path) <= MOST, " -> ".join(path)


def test_one_more_call_is_counted(monkeypatch):
    X = binary(400)
    model = make("bernoullimixture").fit(X)
    before, space = longest_path(model, X), {"inner": type(model.model_).component_log_probs}
    text = "def detour(*arguments):\n    return inner(*arguments)"
    exec(compile(text, str(SOURCE / "models" / "density.py"), "exec"), space)
    monkeypatch.setattr(type(model.model_), "component_log_probs", space["detour"])
    assert longest_path(model, X) == [*before[:-1], "density.detour", before[-1]]
