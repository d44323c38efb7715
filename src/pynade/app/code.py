"""Python code that gives the numbers of an answer: what the page shows under "copy as Python"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SPREAD = "log_ps = [model.score_samples(rows, orderings=one) for one in model.orderings(8)]\n"
SPREAD += "spread = numpy.std(log_ps, axis=0)\n"


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

    def model(self) -> str:
        """Load the model."""
        return f"import numpy\n\nimport pynade\n\nmodel = pynade.load({self.run!r})\n"

    def table(self, data: str | None = None) -> str:
        """Load the model, and a table (of the data, where no file is named)."""
        name = repr(data or self.data or "DATA")
        if self.mixed:
            read = f"resolve({name}, frames=True, missing=model.missing)"
        else:
            read = f"binarized(resolve({name}), {self.binarize!r})"
        more = "" if self.mixed else "from pynade.tables.images import binarized\n"
        start = self.model().replace(
            "import pynade\n", f"import pynade\nfrom pynade.tables import resolve\n{more}"
        )
        return f'{start}table = {read}.split("all")\n'

    def conditional(self, asked: Any, given: dict[Any, Any]) -> str:
        """The distribution of one column."""
        code = f"{self.model()}answer = model.conditional({asked!r}, given={given!r})\n"
        return code + "print(answer)\n"

    def draws(self, place: int, given: dict[int, Any], n_columns: int, n: int) -> str:
        """Draws of one column of a model with a fixed ordering."""
        if not given:
            return f"{self.model()}draws = numpy.asarray(model.sample({n}, random_state=0))[:, {place}]\n"
        code = f"{self.model()}row = numpy.full((1, {n_columns}), numpy.nan)\n"
        code += "".join(f"row[0, {i}] = {value!r}\n" for i, value in given.items())
        options = f"n={n}, random_state=0, particles={4 * n}"
        return f"{code}draws = numpy.asarray(model.impute(row, {options}))[:, 0, {place}]\n"

    def joint(self, keys: list[Any], given: dict[Any, Any], parts: list[tuple[list[Any], list[Any]]]) -> str:
        """Probabilities of the cells of a grid over two columns: the mean over both orders."""
        found = [f"numpy.diff(answer.cdf({e!r}))" if e else f"answer.pmf({v!r})" for e, v in parts]
        (a, xs), (b, ys) = ((key, values) for key, (_, values) in zip(keys, parts, strict=True))
        return f"""{self.model()}given = {given!r}
xs = {xs!r}  # a value of each range of {a}
ys = {ys!r}  # and of {b}
parts = {{
    {a!r}: lambda answer: {found[0]},
    {b!r}: lambda answer: {found[1]},
}}

def along(first, second, values):
    each = [parts[second](model.conditional(second, given={{**given, first: v}})) for v in values]
    return parts[first](model.conditional(first, given=given))[:, None] * numpy.array(each)

p = (along({a!r}, {b!r}, xs) + along({b!r}, {a!r}, ys).T) / 2
"""

    def score(self) -> str:
        """Log p of the rows of a file."""
        return f"{self.table('table.csv')}log_p = model.score_samples(table)\n"

    def fill(self, draws: int | None, seed: int) -> str:
        """A file with its gaps filled."""
        options = "" if draws is None else f", n={draws}, random_state={seed}"
        if self.mixed:
            return f"{self.table('table.csv')}filled = model.impute(table{options})\n"
        code = f"{self.model()}from pynade.tables import read_file\n\ntable, names = read_file('table.csv')\n"
        return f"{code}filled = model.impute(table{options or ', random_state=0'})\n"

    def rows(self, places: list[int], k: int | None, surprise: bool = False, spread: bool = False) -> str:
        """Log p of some rows of the data along k orderings, and the surprise of their cells."""
        options = f", orderings={k}" if k else ""
        code = f"{self.table()}rows = table[{places!r}]\nlog_p = model.score_samples(rows{options})\n"
        code += SPREAD * spread
        if self.mixed:
            return code + "surprise = model.surprise(rows, measure='p_value')\n" * surprise
        code += (
            "\nfrom pynade.plots.cells import cell_cdfs\n\nbelow, up_to = cell_cdfs(model, rows)\n" * surprise
        )
        p_values = "numpy.clip(2 * numpy.minimum(up_to, 1 - below), 1e-300, 1)"
        return code + f"surprise = -numpy.log({p_values})\n" * surprise

    def sample(self, n: int, seed: int, given: dict[Any, Any], numbers: list[str]) -> str:
        """Draws, and the correlations of their numbers."""
        code = f"{self.model()}draws = model.sample({n}, random_state={seed}, given={given or None!r})\n"
        some = f"draws[{numbers!r}]" if self.mixed else "draws"
        return code + (f"correlations = numpy.corrcoef(numpy.asarray({some}, float).T)\n" if numbers else "")

    def image(
        self,
        row: int | None,
        hole: list[int],
        seed: int,
        log_p: str = "",
        probabilities: str = "",
        spread: bool = False,
    ) -> str:
        """An image, and completions if it has a hole."""
        first = (
            "table[{row}]" if row is not None else f"numpy.asarray(model.sample(1, random_state={seed}))[0]"
        )
        start = self.model() if row is None else self.table()
        code = f"{start}image = {first.format(row=row)}.astype(float)\n"
        if not hole:
            return code
        code += f"image[{hole!r}] = numpy.nan\n"
        code += f"completions = model.impute(image[None], n=5, random_state={seed})[:, 0]\n"
        code += f"log_p = {log_p}\n" * bool(log_p) + (SPREAD.replace("rows", "image[None]") * spread)
        return code + probabilities
