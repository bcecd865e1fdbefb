"""Build the playground: the sources in web/ and the printed cells, bundled by esbuild into one page.

    python tools/playground.py                      # writes src/longlag/play/page.html; needs node and npm
    python tools/playground.py picture FILE.png     # takes a picture of the page; needs a Chromium

The page is committed and part of the wheel, so that only those who change its sources need npm. `digest` names the
sources that a page was made from; a test compares it with the sources that are there.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from longlag import cells, lab
from longlag.layers import bounds
from longlag.play import PAGE

ROOT = Path(__file__).resolve().parents[1]
WEB = ROOT / "web"
BUILD = ROOT / "build" / "playground"

# how the page groups its cells; all but those that need data of their own at every step
GROUPS = {
    "Classic": "elman elman_relu rnn97 leaky lstm97",
    "With gates": "lstm peephole_lstm coupled_lstm gru gru_original mgu slstm fast_grnn",
    "Memory of their own": "net_feedback activation_feedback ind_rnn min_gru min_lstm lru",
    "Continuous time": "ctrnn cfc co_rnn lem",
    "Spikes": "lif snn_leaky snn_synaptic adaptive_lif",
}


@cells.cell(gates="a", dense=False)
def linear(a: Any) -> Any:
    """Linear output unit.

    y(t) = a
    """
    return a


def lstm97() -> cells.Cell:
    """The memory cell of 1997 as units that read each other's outputs, one cell to a block."""
    made = cells.cell(gates="i a o", states="s")(cells.memory_cell().equations)
    equations = (inspect.getdoc(cells.memory_cell) or "").partition("\n\n")[2]
    made.__doc__ = f"Memory cell of 1997: no forget gate, s(t−1) is kept as it is.\n\n{equations}"
    return made


def shown() -> dict[str, cells.Cell]:
    """The cells to choose from, by name."""
    names = " ".join(GROUPS.values()).split()
    return {name: lstm97() if name == "lstm97" else getattr(cells, name) for name in names}


def gain(cell: cells.Cell) -> dict[str, Any] | None:
    """The library's bound on the error flow per step, asked with U = 1 and parameters 1, if it scales with these."""
    one = torch.ones(1, dtype=torch.float64)
    U = torch.ones(1, 1, dtype=torch.float64) if cell.dense else None
    found = bounds.gain_bound(cell, U, [one])
    if found is None or (cell.dense and cell.params):
        return None
    return {"factor": found[0], "is": found[1], "param": None if cell.dense else cell.params[0]}


def experiments() -> dict[str, Any]:
    """What the learning network is made of: the experiments of 1997 in the readings that fit."""
    found = {
        "adding": (lab.hs97.experiment_4(reading="fit"), 50),
        "multiplication": (lab.hs97.experiment_5(reading="fit"), 50),
        "order": (lab.hs97.experiment_6(), 100),
    }
    return {name: _experiment(experiment, T) for name, (experiment, T) in found.items()}


def _experiment(experiment: Any, T: int) -> dict[str, Any]:
    learner, stop = experiment.learner, experiment.stop
    network, goal = learner.network, stop.goals[-1]
    assert (network.g, network.h, network.hidden_units, learner.update) == ("4s-2", "2s-1", 0, "sequence")
    return {
        "T": T,
        "network": {
            "inputs": network.input_size,
            "blocks": network.blocks,
            "blockSize": network.block_size,
            "outputs": network.output_size,
            "output": network.output,
        },
        "rate": learner.lr,
        "reach": learner.reach,
        "inputGateBias": list(learner.input_gate_bias),
        "bound": stop.bound,
        "window": stop.size,
        "wrong": goal.fewer_than,
        "mean": goal.mean if goal.mean < float("inf") else None,
    }


def data() -> dict[str, Any]:
    """All that the page takes from the library."""
    chosen = shown()
    sources = {name: made.source("js") for name, made in chosen.items()}
    learner = {"memory_cell": cells.memory_cell(), "rnn97": cells.rnn97, "linear": linear}
    return {
        "groups": {group: names.split() for group, names in GROUPS.items()},
        "sources": sources,
        "gains": {name: found for name, made in chosen.items() if (found := gain(made))},
        "learner": {name: made.source("js") for name, made in learner.items()},
        "experiments": experiments(),
    }


def inputs() -> Iterator[tuple[str, bytes]]:
    """What the page is made from, by name."""
    yield "data", json.dumps(data(), ensure_ascii=False).encode()
    for file in sorted([*WEB.glob("*.json"), *(WEB / "src").rglob("*.*")]):
        yield file.relative_to(WEB).as_posix(), file.read_bytes()


def digest() -> str:
    """A name for the present sources; the page carries that of its own."""
    parts = [hashlib.sha256(content.replace(b"\r\n", b"\n")).hexdigest() + " " + name for name, content in inputs()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def bundle(entry: str, name: str) -> str:
    """A script with all that it imports, minified."""
    target, meta = BUILD / name, BUILD / f"{name}.json"
    options = ["--bundle", "--minify", "--format=iife", "--target=es2022", "--charset=utf8", "--log-level=warning"]
    command = ["node_modules/.bin/esbuild", entry, *options, f"--outfile={target}", f"--metafile={meta}"]
    subprocess.run(command, cwd=WEB, check=True)
    return target.read_text(encoding="utf-8")


def licences() -> str:
    """The licences of the packages in the bundle, each text once."""
    read = json.loads((BUILD / "main.js.json").read_text(encoding="utf-8"))["inputs"]
    packages = sorted({part.split("node_modules/")[1] for part in read if "node_modules/" in part})
    names = sorted({"/".join(p.split("/")[: 2 if p.startswith("@") else 1]) for p in packages})
    texts: dict[str, list[str]] = {}
    for name in names:
        folder = WEB / "node_modules" / name
        files = sorted(file for file in folder.iterdir() if file.name.upper().startswith("LICEN"))
        text = (
            files[0].read_text(encoding="utf-8")
            if files
            else json.loads((folder / "package.json").read_text())["license"]
        )
        texts.setdefault(text.strip(), []).append(name)
    return "\n\n".join(f"{', '.join(who)}\n\n{text}" for text, who in texts.items())


def script(text: str) -> str:
    """Text that may stand in a script element."""
    return text.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def build() -> str:
    """The page."""
    BUILD.mkdir(parents=True, exist_ok=True)
    if not (WEB / "node_modules").is_dir():
        subprocess.run(["npm", "ci", "--ignore-scripts"], cwd=WEB, check=True)
    parts = {
        "digest": digest(),
        "style": (WEB / "src" / "style.css").read_text(encoding="utf-8"),
        "worker": script(bundle("src/learner/worker.js", "worker.js")),
        "main": script(bundle("src/main.js", "main.js")),
        "data": json.dumps(data(), ensure_ascii=False).replace("</", "<\\/"),
        "licences": licences().replace("<", "&lt;"),
    }
    page = (WEB / "src" / "page.html").read_text(encoding="utf-8")
    for name, content in parts.items():
        page = page.replace(f"{{{{{name}}}}}", content, 1)
    return page


def take_picture(file: Path) -> None:
    """The page in the system's Chromium."""
    from playwright.sync_api import sync_playwright  # pyright: ignore[reportMissingImports]

    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 1020})
        page.goto(PAGE.as_uri() + "#gain=1.6")
        page.wait_for_selector("#picture-flow svg")
        page.screenshot(path=file)
        browser.close()


def main(arguments: list[str]) -> int:
    """Write the page, if its sources are not those of the present one."""
    if arguments[:1] == ["picture"]:
        take_picture(Path(arguments[1]))
        return 0
    if f'data-sources="{digest()}"' in PAGE.read_text(encoding="utf-8"):
        print(f"{PAGE.relative_to(ROOT)} is up to date")
        return 0
    page = build()
    PAGE.write_text(page, encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)}: {len(page.encode()):,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
