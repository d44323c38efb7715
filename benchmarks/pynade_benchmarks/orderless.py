"""What the benchmarks of orderless models share: a trained run with rows of data, and its provenance."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pynade.device import torch_device
from pynade.estimators.base import load_with_facts
from pynade.runs.provenance import provenance
from pynade.runs.run import as_command
from pynade.runs.summary import read_spec
from pynade.tables import Dataset, resolve
from pynade.tables.frames import align
from pynade.tables.images import binarized


@dataclass(frozen=True)
class Trained:
    """An orderless estimator from a run folder, and rows of data with its columns in its order."""

    run: Path
    model: Any
    dataset: Dataset
    split: str
    rows: np.ndarray

    @classmethod
    def load(cls, run: Path, data: str, split: str, data_dir: Path | None = None) -> Trained:
        """Load the run and the data.

        Args:
            run: run folder of an orderless model.
            data: registered name or file.
            split: part of the data.
            data_dir: folder of the registered data sets.
        """
        model, facts = load_with_facts(run)
        if not hasattr(model, "score_orderings") or not hasattr(model.model_, "under"):
            raise ValueError(f"{run} holds no orderless model (deepnade, eonade, convnade, unet)")
        dataset = resolve(data, data_dir)
        if "binarize" in facts:
            dataset = binarized(dataset, facts["binarize"])
        columns, dropped = facts.get("columns"), facts.get("dropped", ())
        rows = align(dataset.split(split), dataset.schema.names, columns, dropped)
        return cls(run, model, dataset, split, rows)

    @property
    def training(self) -> str:
        """Epochs and seconds of the run."""
        result = json.loads((self.run / "result.json").read_text(encoding="utf-8"))
        return f"{result['epochs']} epochs ({result['seconds']:.0f} s)"

    def record(self, command: str) -> dict[str, Any]:
        """The part of a record that says how and where it was made.

        Args:
            command: that measures, with RUN for the run folder.
        """
        made = provenance(self.dataset, seed=self.model.random_state, device=torch_device(self.model.device))
        names = ("code", "libraries", "python", "device", "threads", "seed")
        return {
            "commands": [as_command(read_spec(self.run), "RUN"), command],
            "data_checksum": self.dataset.checksum,
            **{name: made[name] for name in names},
            "measured": made["started"],
        }
