"""Run small fits of other libraries with LEM in the LSTM's place: `make peers`, or `python tools/peers.py NAME ...`.

Each library gets an environment of its own in build/peers, on top of the one that runs this program, so that torch and
this library stay what they are. The environment is deleted afterwards. What was seen is written to tools/peers.json,
and the table of docs/peers.md is made from it; a library that was not run is said to be so.
"""

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import traceback
import venv
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "tools" / "peers.json"
PAGE = ROOT / "docs" / "peers.md"
MARK = "<!-- the table is written by tools/peers.py -->"


def everywhere() -> Any:
    """Let code that builds an `nn.LSTM` build a LEM."""
    from torch import nn

    from lem import LEM

    return patch.object(nn, "LSTM", LEM)


def count(module: Any) -> int:
    """Return how many LEM layers a model has; a fit without one would show nothing."""
    from lem import LEM

    found = sum(isinstance(child, LEM) for child in module.modules())
    assert found, "no LEM in the model"
    return found


def waves(rows: int = 64, steps: int = 40) -> Any:
    """Noisy sines of two frequencies, (rows, steps, 1), and which of the two each row has."""
    import numpy as np

    random = np.random.default_rng(0)
    labels = np.arange(rows) % 2
    phase, t = random.uniform(0, 6.28, (rows, 1)), np.arange(steps)
    x = np.sin(phase + t * (0.2 + 0.2 * labels[:, None])) + 0.1 * random.standard_normal((rows, steps))
    return x[:, :, None].astype(np.float32), labels


def classifier(layer: Any = None) -> Any:
    from torch import nn

    from lem import LEM

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = (layer or LEM)(1, 16, batch_first=True)
            self.out = nn.Linear(16, 2)

        def forward(self, x: Any) -> Any:
            return self.out(self.rnn(x)[0][:, -1])

    return Classifier()


def skorch() -> str:
    """Grid search of a classifier."""
    import torch
    from sklearn.model_selection import GridSearchCV
    from skorch import NeuralNetClassifier

    x, y = waves()
    net = NeuralNetClassifier(
        type(classifier()), max_epochs=25, batch_size=16, optimizer=torch.optim.Adam,
        criterion=torch.nn.CrossEntropyLoss, train_split=None, verbose=0,
    )  # fmt: skip
    search = GridSearchCV(net, {"lr": [0.01, 0.03]}, cv=2).fit(x, y)
    count(search.best_estimator_.module_)
    assert search.best_score_ > 0.8, search.best_score_
    return f"grid search, accuracy {search.best_score_:.2f}"


def accelerate() -> str:
    """Training with Accelerator; offloading to the CPU and to disk."""
    import copy

    import torch
    from accelerate import Accelerator, cpu_offload, disk_offload

    torch.manual_seed(0)
    x, y = (torch.as_tensor(a) for a in waves())
    model = classifier()
    accelerator = Accelerator(cpu=True)
    model, optimiser = accelerator.prepare(model, torch.optim.Adam(model.parameters(), lr=0.02))
    losses = []
    for _ in range(60):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimiser.zero_grad()
        accelerator.backward(loss)
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0], losses
    model = accelerator.unwrap_model(model).eval()
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        expected = model(x)
        on_cpu = cpu_offload(copy.deepcopy(model), torch.device("cpu"))
        assert {p.device.type for p in on_cpu.parameters()} == {"meta"}
        assert torch.equal(on_cpu(x), expected)
        on_disk = copy.deepcopy(model)
        disk_offload(on_disk, folder, torch.device("cpu"))
        assert {p.device.type for p in on_disk.parameters()} == {"meta"}
        assert torch.equal(on_disk(x), expected)
    count(model)
    return f"training (loss {losses[0]:.2f} to {losses[-1]:.2f}), cpu_offload, disk_offload"


def lightning() -> str:
    """A LightningModule trained, checkpointed and loaded."""
    import lightning as L
    import torch

    x, y = (torch.as_tensor(a) for a in waves())

    class Module(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = classifier()

        def training_step(self, batch: Any, index: int) -> Any:
            return torch.nn.functional.cross_entropy(self.model(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=0.02)

    L.seed_everything(0)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=16)
    with tempfile.TemporaryDirectory() as folder:
        trainer = L.Trainer(
            max_epochs=15, accelerator="cpu", logger=False, default_root_dir=folder, enable_progress_bar=False,
            enable_model_summary=False,
        )  # fmt: skip
        module = Module()
        trainer.fit(module, loader)
        trainer.save_checkpoint(f"{folder}/last.ckpt")
        again = Module.load_from_checkpoint(f"{folder}/last.ckpt")
        assert torch.equal(again.model(x), module.model(x))
    accuracy = (module.model(x).argmax(1) == y).float().mean().item()
    assert accuracy > 0.8, accuracy
    count(module)
    return f"training and checkpoints, accuracy {accuracy:.2f}"


def opacus() -> str:
    """Private training with per-sample gradients by torch.func, as Opacus' mode "no_op" takes them."""
    import torch
    from opacus import PrivacyEngine
    from torch.func import functional_call, grad, vmap

    torch.manual_seed(0)
    x, y = (torch.as_tensor(a) for a in waves())
    model = classifier()
    count(model)
    criterion = torch.nn.functional.cross_entropy

    def loss(weights: Any, row: Any, label: Any) -> Any:
        return criterion(functional_call(model, weights, (row[None],)), label[None])

    each = vmap(grad(loss), (None, 0, 0), randomness="different")

    def samples(rows: Any, labels: Any) -> Any:
        return each({name: p.detach() for name, p in model.named_parameters()}, rows, labels)

    found = samples(x[:3], y[:3])
    for i in range(3):
        model.zero_grad()
        criterion(model(x[i : i + 1]), y[i : i + 1]).backward()
        for name, p in model.named_parameters():
            torch.testing.assert_close(found[name][i], p.grad, rtol=1e-4, atol=1e-6)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=16)
    engine = PrivacyEngine()
    private, optimiser, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.3),
        data_loader=loader,
        noise_multiplier=0.05,
        max_grad_norm=1.0,
        grad_sample_mode="no_op",
    )
    before = criterion(private(x), y).item()
    for _ in range(15):
        for rows, labels in loader:
            if not len(rows):
                continue
            optimiser.zero_grad()
            found = samples(rows, labels)
            for name, p in model.named_parameters():
                p.grad_sample = found[name]
            optimiser.step()
    after = criterion(private(x), y).item()
    assert after < before, (before, after)
    return f"private training, grad_sample_mode='no_op' with torch.func (loss {before:.2f} to {after:.2f})"


def sb3_contrib() -> str:
    """RecurrentPPO on CartPole."""
    from sb3_contrib import RecurrentPPO

    with everywhere():
        agent = RecurrentPPO("MlpLstmPolicy", "CartPole-v1", n_steps=64, batch_size=32, n_epochs=2, seed=0)
        layers = count(agent.policy)
        agent.learn(total_timesteps=256)
        with tempfile.TemporaryDirectory() as folder:
            agent.save(f"{folder}/agent")
            again = RecurrentPPO.load(f"{folder}/agent")
    observation = agent.env.reset()
    assert (
        agent.predict(observation, deterministic=True)[0] == again.predict(observation, deterministic=True)[0]
    ).all()
    return f"RecurrentPPO, {layers} layers, trained, saved and loaded"


def torchrl() -> str:
    """LSTMModule, one step at a time and over a sequence with episodes that begin inside it."""
    import torch
    from tensordict import TensorDict

    with everywhere():
        from torchrl.modules import LSTMModule, set_recurrent_mode

        from lem import LEM

        module = LSTMModule(
            lstm=LEM(3, 8, batch_first=True), in_keys=["x", "h", "c"], out_keys=["y", ("next", "h"), ("next", "c")]
        )
        u = torch.randn(2, 5, 3)
        begins = torch.zeros(2, 5, 1, dtype=torch.bool)
        begins[:, 0] = begins[1, 2] = True
        zeros = torch.zeros(2, 5, 1, 8)
        with set_recurrent_mode(True):
            given = TensorDict({"x": u, "is_init": begins, "h": zeros, "c": zeros}, [2, 5])
            found = module(given)["y"]
    count(module)
    expected, _ = module.lstm(u, resets=begins[..., 0] & (torch.arange(5) > 0))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    return "LSTMModule over sequences with resets"


def neuralforecast() -> str:
    """LSTM and DeepAR with LEM, on the passengers series."""
    from neuralforecast import NeuralForecast
    from neuralforecast.models import LSTM, DeepAR
    from neuralforecast.utils import AirPassengersDF

    with everywhere():
        common = {"h": 12, "input_size": 24, "max_steps": 20, "accelerator": "cpu", "enable_progress_bar": False}
        models = [LSTM(**common), LSTM(**common, recurrent=True, alias="recurrent"), DeepAR(**common)]
        layers = sum(count(model) for model in models)
        forecaster = NeuralForecast(models=models, freq="ME")
        forecaster.fit(AirPassengersDF)
        forecast = forecaster.predict()
    assert len(forecast) == 12
    assert forecast[["LSTM", "recurrent"]].notna().all(axis=None)
    return f"LSTM, LSTM with recurrent=True, DeepAR, {layers} layers"


def darts() -> str:
    """BlockRNNModel and RNNModel: fit, predict, save, to_onnx."""
    import numpy as np
    from darts import TimeSeries
    from darts.models import BlockRNNModel, RNNModel

    series = TimeSeries.from_values(np.sin(np.arange(200, dtype=np.float32) / 5))
    quiet = {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False}
    done = []
    with everywhere(), tempfile.TemporaryDirectory() as folder:
        for kind, options in (
            (BlockRNNModel, {"output_chunk_length": 6}),
            (RNNModel, {"training_length": 30}),
        ):
            model = kind(model="LSTM", input_chunk_length=24, n_epochs=5, pl_trainer_kwargs=quiet, **options)
            model.fit(series)
            count(model.model)
            before = model.predict(6)
            model.save(f"{folder}/model.pt")
            assert np.allclose(kind.load(f"{folder}/model.pt").predict(6).values(), before.values(), atol=1e-6)
            done.append(kind.__name__)
            # Darts passes dynamo=False, which LEM refuses with this way out.
            inner = model.model
            inner.to_onnx = lambda inner=inner, **given: type(inner).to_onnx(inner, **{**given, "dynamo": True})
            model.to_onnx(f"{folder}/model.onnx")
            assert Path(f"{folder}/model.onnx").exists()
    return ", ".join(done) + ": fit, predict, save; to_onnx with dynamo=True put in for Darts' dynamo=False"


def gluonts() -> str:
    """DeepAR and the temporal fusion transformer."""
    import numpy as np
    import pandas as pd
    from gluonts.dataset.pandas import PandasDataset
    from gluonts.torch import DeepAREstimator, TemporalFusionTransformerEstimator

    index = pd.period_range("2020-01-01", periods=200, freq="D")
    frame = pd.DataFrame({"target": np.sin(np.arange(200) / 5).astype(np.float32)}, index=index)
    data = PandasDataset({"a": frame, "b": frame * 2}, target="target")
    trainer = {"max_epochs": 2, "accelerator": "cpu", "enable_progress_bar": False, "logger": False}
    done = []
    with everywhere():
        for kind in (DeepAREstimator, TemporalFusionTransformerEstimator):
            estimator = kind(
                freq="D", prediction_length=7, context_length=21, trainer_kwargs=trainer, num_batches_per_epoch=4
            )
            predictor = estimator.train(data)
            count(predictor.prediction_net)
            assert np.isfinite(next(iter(predictor.predict(data))).mean).all()
            done.append(kind.__name__)
    return ", ".join(done)


def aeon() -> str:
    """Cross-validation, a pipeline and a grid search of the estimator by aeon's conventions."""
    from aeon.classification.compose import ClassifierPipeline
    from aeon.transformations.collection import Normalizer
    from sklearn.model_selection import cross_val_score

    from lem import LEMClassifier

    x, y = waves()
    x = x.transpose(0, 2, 1).astype(float)
    scores = cross_val_score(LEMClassifier(random_state=0, effort="quick"), x, y, cv=2)
    pipeline = ClassifierPipeline(Normalizer(), LEMClassifier(random_state=0, effort="quick")).fit(x, y)
    assert scores.mean() > 0.8, scores
    return f"cross_val_score {scores.mean():.2f}, ClassifierPipeline {(pipeline.predict(x) == y).mean():.2f}"


def sktime() -> str:
    """Cross-validation on sktime's numpy3D data, and refusal or right reading of its list of DataFrames."""
    from sklearn.model_selection import cross_val_score
    from sktime.datatypes import check_is_mtype, convert_to

    from lem import LEMClassifier

    x, y = waves()
    x = x.transpose(0, 2, 1).astype(float)
    assert check_is_mtype(x, "numpy3D", "Panel")
    scores = cross_val_score(LEMClassifier(random_state=0, effort="quick"), x, y, cv=2)
    assert scores.mean() > 0.8, scores
    frames = convert_to(x, "df-list")
    model = LEMClassifier(random_state=0, effort="quick").fit(x, y)
    assert (model.predict(frames) == model.predict(x)).all(), "df-list is read in another way"
    return f"cross_val_score {scores.mean():.2f} on numpy3D; df-list is read the same"


def pytorch_forecasting() -> str:
    """DeepAR with the subclass of docs/replace-your-lstm.md."""
    import numpy as np
    import pandas as pd
    import torch
    from pytorch_forecasting import DeepAR, TimeSeriesDataSet
    from pytorch_forecasting.layers import _recurrent
    from pytorch_forecasting.models import deepar

    from lem import LEM

    del _recurrent

    class Layer(LEM):
        """What pytorch-forecasting asks of a layer besides nn.LSTM's interface."""

        def handle_no_encoding(self, hidden_state: Any, no_encoding: Any, initial: Any) -> Any:
            return tuple(torch.where(no_encoding, first, last) for first, last in zip(initial, hidden_state))

        def init_hidden_state(self, x: Any) -> Any:
            rows = x.shape[0] if self.batch_first else x.shape[1]
            return tuple(x.new_zeros(len(self.cells), rows, self.hidden_size) for _ in range(2))

    frame = pd.DataFrame(
        {"t": np.tile(np.arange(80), 2), "group": np.repeat(["a", "b"], 80), "value": np.sin(np.arange(160) / 5)}
    )
    data = TimeSeriesDataSet(
        frame, time_idx="t", target="value", group_ids=["group"], max_encoder_length=20, max_prediction_length=5,
        time_varying_unknown_reals=["value"],
    )  # fmt: skip
    import lightning as L

    del deepar
    model = DeepAR.from_dataset(data, learning_rate=0.03, hidden_size=10)
    model.rnn = Layer(model.rnn.input_size, 10, model.rnn.num_layers, dropout=0.0, batch_first=True)
    trainer = L.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(model, data.to_dataloader(batch_size=16))
    count(model)
    return "DeepAR with an 8-line subclass"


PEERS: dict[str, tuple[list[str], Callable[[], str]]] = {
    "skorch": (["skorch==1.4.0"], skorch),
    "accelerate": (["accelerate==1.15.0"], accelerate),
    "lightning": (["lightning==2.6.6"], lightning),
    "sb3-contrib": (["sb3-contrib==2.9.2"], sb3_contrib),
    "opacus": (["opacus==1.6.0"], opacus),
    "u8darts": (["u8darts[torch]==0.41.0"], darts),
    "gluonts": (["gluonts[torch]==0.17.0"], gluonts),
    "aeon": (["aeon==1.6.0"], aeon),
    "sktime": (["sktime==1.2.0"], sktime),
    "torchrl": (["torchrl==0.14.1"], torchrl),
    "neuralforecast": (["neuralforecast==3.3.0"], neuralforecast),
    "pytorch-forecasting": (["pytorch-forecasting==1.8.0"], pytorch_forecasting),
}
"""For each library, by its name on PyPI, what is installed and the function that uses it."""


def run(name: str) -> dict[str, Any]:
    """Run the fits of one library in this environment."""
    packages, fit = PEERS[name]
    try:
        works, seen = True, fit()
    except Exception as error:
        traceback.print_exc()
        works, seen = False, f"{type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}"
    names = [package.split("==")[0].split("[")[0] for package in packages]
    versions = {package: version(package) for package in [*names, "torch", "numpy"]}
    return {"works": works, "seen": seen, "versions": versions}


def in_an_environment(name: str) -> dict[str, Any]:
    """Build an environment for one library, run its fits there, and delete the environment."""
    folder = ROOT / "build" / "peers" / name
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=False, symlinks=True)
    inside = next((folder / "lib").glob("python*")) / "site-packages"
    (inside / "base.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    python = str(folder / "bin" / "python")
    constraint = folder / "constraints.txt"
    constraint.write_text("torch==2.13.0\n")
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
    try:
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", str(constraint)]
        done = subprocess.run([*install, *PEERS[name][0]], text=True, capture_output=True)
        if done.returncode:
            return {"date": today, "works": False, "seen": f"cannot be installed: {done.stderr.strip()[-200:]}"}
        answer = folder / "answer.json"
        done = subprocess.run([python, __file__, "--inside", str(answer), name], env=environment)
        if not answer.exists():
            return {"date": today, "works": False, "seen": f"ended with status {done.returncode}"}
        return {"date": today, **json.loads(answer.read_text())}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def table(results: dict[str, Any]) -> str:
    """Return the table of the page."""
    lines = ["| library | result | what was run | versions | date |", "|---|---|---|---|---|"]
    for name in PEERS:
        if name not in results:
            lines.append(f"| {name} | not run | | {', '.join(PEERS[name][0])} | |")
            continue
        seen = results[name]
        versions = ", ".join(f"{package} {number}" for package, number in sorted(seen.get("versions", {}).items()))
        lines.append(
            f"| {name} | {'works' if seen['works'] else 'fails'} | {seen['seen'].replace('|', '/')} | {versions} "
            f"| {seen['date']} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="libraries; all if none is given")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        Path(options.inside).write_text(json.dumps(run(options.names[0])))
        return 0
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in options.names or PEERS:
        results[name] = in_an_environment(name)
        print(f"{name}: {'works' if results[name]['works'] else 'fails'}: {results[name]['seen']}", flush=True)
        RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    head = PAGE.read_text().partition(MARK)[0]
    PAGE.write_text(f"{head}{MARK}\n\n{table(results)}")
    return 0 if all(results[name]["works"] for name in options.names or PEERS) else 1


if __name__ == "__main__":
    sys.exit(main())
