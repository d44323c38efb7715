"""Python code that gives the numbers of an answer: what the page shows under "copy as Python"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Code:
    """Texts of code about one model.

    Args:
        run: the run folder or model file.
        data: the file or the name of the data; None has none.
        mixed: whether the model is one of mixed tables.
        binarize: how grey levels of the data were made black and white.
    """

    run: str = "RUN"
    data: str | None = None
    mixed: bool = True
    binarize: Any = None

    def model(self, imports: str = "") -> str:
        """Load the model."""
        return f"import numpy\n\nimport pynade\n{imports}\nmodel = pynade.load({self.run!r})\n"

    def table(self, data: str | None = None) -> str:
        """Load the model, and a table (of the data, where no file is named)."""
        data, imports = repr(data or self.data or "DATA"), "from pynade.tables import resolve\n"
        table = f"resolve({data}, frames=True, missing=model.missing)"
        if not self.mixed:
            imports += "from pynade.tables.images import binarized\n"
            table = f"binarized(resolve({data}), {self.binarize!r})"
        return f'{self.model(imports)}table = {table}.split("all")\n'

    def conditional(self, column: Any, given: dict[Any, Any]) -> str:
        """The distribution of one column."""
        return f"{self.model()}answer = model.conditional({column!r}, given={given!r})\nprint(answer)\n"

    def draws(self, column: int, given: dict[int, Any], n_columns: int, n: int) -> str:
        """Draws of one column of a model with a fixed ordering."""
        if not given:
            return f"{self.model()}draws = numpy.asarray(model.sample({n}, random_state=0))[:, {column}]\n"
        code = f"{self.model()}row = numpy.full((1, {n_columns}), numpy.nan)\n"
        code += "".join(f"row[0, {i}] = {value!r}\n" for i, value in given.items())
        options = f"n={n}, random_state=0, particles={4 * n}"
        return f"{code}draws = numpy.asarray(model.impute(row, {options}))[:, 0, {column}]\n"

    def joint(self, keys: list[Any], given: dict[Any, Any], grid: list[tuple[list[Any], list[Any]]]) -> str:
        """Probabilities of the cells of a grid over two columns: the mean over both orders."""
        (a, b), (_, xs), (_, ys) = keys, *grid
        of_a, of_b = (f"numpy.diff(answer.cdf({e!r}))" if e else f"answer.pmf({v!r})" for e, v in grid)
        return f"""{self.model()}given = {given!r}
xs = {xs!r}  # a value of each range of {a}
ys = {ys!r}  # and of {b}
probabilities = {{
    {a!r}: lambda answer: {of_a},
    {b!r}: lambda answer: {of_b},
}}

def chain_rule(first, second, values):
    answers = [model.conditional(second, given={{**given, first: value}}) for value in values]
    p = probabilities[first](model.conditional(first, given=given))
    return p[:, None] * numpy.array([probabilities[second](answer) for answer in answers])

p = (chain_rule({a!r}, {b!r}, xs) + chain_rule({b!r}, {a!r}, ys).T) / 2
"""

    @staticmethod
    def spread(rows: str) -> str:
        """Code for the standard deviation over orderings of log p; `rows` is a name or an expression."""
        scores = f"[model.score_samples({rows}, orderings=order) for order in model.orderings(8)]"
        return f"log_ps = {scores}\nspread = numpy.std(log_ps, axis=0)\n"

    def sample(self, n: int, seed: int, **options: Any) -> str:
        """Draws."""
        words = "".join(f", {name}={value!r}" for name, value in options.items())
        return f"{self.model()}draws = model.sample({n}, random_state={seed}{words})\n"
