"""A stream in pieces with Lightning: the state is carried from batch to batch, and a checkpoint contains it.

    python examples/with_lightning.py [--epochs 4]

Truncated backpropagation through time: a long series is cut into pieces, one batch each, and the layer goes on from the
state that it reached in the batch before. An epoch is a stretch of the stream; the next epoch goes on where it ended.
The state is in buffers of the module, so Lightning saves and restores it with the weights.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import longlag as ll

PARTS, PIECE, PIECES = 8, 25, 20  # streams side by side; steps of a batch; batches of an epoch


def stretch(epoch: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets of an epoch, (PIECES, PIECE, PARTS, 1): each value of a wave, and the value after it."""
    t = torch.arange(PIECES * PIECE + 1.0) + epoch * PIECES * PIECE
    t = t.unsqueeze(-1) + 7 * torch.arange(PARTS)
    wave = ((torch.sin(t / 5) + torch.sin(t / 17)) / 2).unsqueeze(-1)
    return wave[:-1].unflatten(0, (PIECES, PIECE)), wave[1:].unflatten(0, (PIECES, PIECE))


class Forecast(pl.LightningModule):
    """Predicts the next value of every stream."""

    def __init__(self, units: int = 24) -> None:
        super().__init__()
        self.layer, self.readout = ll.LSTM(1, units), nn.Linear(units, 1)
        for name, part in zip(self.layer.state_spec.names, self.layer.state_spec.zeros(PARTS, torch.zeros(0))):
            self.register_buffer(f"carried_{name}", part)

    def training_step(self, batch: list[Tensor]) -> Tensor:
        x, target = batch
        spec = self.layer.state_spec
        carried = [self.get_buffer(f"carried_{name}") for name in spec.names]
        y, state = self.layer(x, spec.whole([part.clone() for part in carried]))
        for part, new in zip(carried, spec.parts(state)):
            part.copy_(new.detach())  # no gradient flows into earlier pieces
        loss = nn.functional.mse_loss(self.readout(y), target)
        self.log("loss", loss)
        return loss

    def train_dataloader(self) -> DataLoader:
        return DataLoader(TensorDataset(*stretch(self.current_epoch)), batch_size=None)  # made anew for every epoch

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def trained(epochs: int, checkpoint: Path | None = None, going_on: Path | None = None) -> tuple[Forecast, float]:
    """Train to the end of so many epochs, from a checkpoint or from the beginning; returns the last loss too."""
    pl.seed_everything(0, verbose=False)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    options = {"accelerator": "cpu", "enable_checkpointing": False, "reload_dataloaders_every_n_epochs": 1}
    trainer, model = pl.Trainer(max_epochs=epochs, **options, **quiet), Forecast()  # pyright: ignore[reportArgumentType]
    trainer.fit(model, ckpt_path=going_on)
    if checkpoint is not None:
        trainer.save_checkpoint(checkpoint)
    return model, float(trainer.callback_metrics["loss"])


def identical(epochs: int) -> tuple[float, bool]:
    """The last loss, and whether training interrupted halfway ends with the same bits as training that was not."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder, "half.ckpt")
        trained(epochs // 2, checkpoint)
        model, _ = trained(epochs, going_on=checkpoint)
    whole, loss = trained(epochs)
    pairs = zip(model.state_dict().values(), whole.state_dict().values())
    return loss, all(torch.equal(a, b) for a, b in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=4)
    loss, same = identical(parser.parse_args().epochs)
    print(f"last loss {loss:.5f}; going on from a checkpoint gives the same bits: {same}")


if __name__ == "__main__":
    main()
