"""A model in the format of the Hugging Face Hub: weights in safetensors, arguments in JSON; nothing goes online.

    python examples/with_hub.py [--folder my-model]

``PyTorchModelHubMixin`` gives any module ``save_pretrained``, ``from_pretrained`` and ``push_to_hub``. Layers of
longlag are modules, so they need nothing more. ``model.push_to_hub("you/name")`` would publish the same folder.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from huggingface_hub import PyTorchModelHubMixin
from torch import Tensor, nn

import longlag as ll


class Classifier(nn.Module, PyTorchModelHubMixin, library_name="longlag", tags=["recurrent"]):
    """Classifies sequences by the output at their end. The arguments of the constructor become config.json."""

    def __init__(self, inputs: int, classes: int, units: int = 32, layer: str = "LSTM") -> None:
        super().__init__()
        self.layer: ll.layers.Layer = getattr(ll, layer)(inputs, units)
        self.head = nn.Linear(units, classes)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """x (T, B, inputs) -> logits (B, classes)."""
        y, _ = self.layer(x, lengths=lengths)
        return self.head(y[lengths - 1, torch.arange(len(lengths))])


def saved_and_loaded(folder: Path) -> tuple[Classifier, Classifier]:
    """A model, and the one that is read from its folder."""
    torch.manual_seed(0)
    model = Classifier(3, 4, layer="GRU").eval()
    model.save_pretrained(folder)
    return model, Classifier.from_pretrained(folder, local_files_only=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where the model is kept; by default nowhere")
    with tempfile.TemporaryDirectory() as place:
        folder = parser.parse_args().folder or Path(place)
        model, loaded = saved_and_loaded(folder)
        x, lengths = torch.randn(9, 2, 3), torch.tensor([9, 4])
        same = torch.equal(model(x, lengths), loaded(x, lengths))
        print(f"{sorted(path.name for path in folder.iterdir())}; the loaded model gives the same bits: {same}")


if __name__ == "__main__":
    main()
