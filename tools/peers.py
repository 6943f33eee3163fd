"""Run small fits of other libraries with LEM in the LSTM's place: `make peers`, or `python tools/peers.py NAME ...`.

Each library gets an environment of its own in a temporary folder, on top of the one that runs this program, so that
torch and this library stay what they are. It is deleted afterwards, unless `--environments FOLDER` names a folder to
keep it in for the next run. What was seen is written to tools/peers.json, and the table of docs/peers.md is made from
it; a library that was not run is said to be so.
"""

import argparse
import datetime
import json
import os
import runpy
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


def adapter(file: str, name: str) -> Any:
    """Return a class of examples/adapters."""
    return runpy.run_path(str(ROOT / "examples" / "adapters" / file))[name]


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

    torch.manual_seed(0)
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
    x, y = (torch.as_tensor(a) for a in waves(512, 16))
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
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=128)
    engine = PrivacyEngine()
    private, optimiser, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=0.02),
        data_loader=loader,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        grad_sample_mode="no_op",
    )
    before = criterion(private(x), y).item()
    for _ in range(30):
        for rows, labels in loader:
            optimiser.zero_grad()
            found = samples(rows, labels)
            for name, p in model.named_parameters():
                p.grad_sample = found[name]
            optimiser.step()
    after = criterion(private(x), y).item()
    assert after < 0.5 * before, (before, after)
    epsilon = engine.get_epsilon(delta=1e-3)
    return (
        f"private training, grad_sample_mode='no_op' with torch.func (loss {before:.2f} to {after:.2f}, "
        f"epsilon {epsilon:.0f} at delta 0.001)"
    )


def sb3_contrib() -> str:
    """RecurrentPPO on CartPole; the policy of examples/adapters/t_maze.py beside the library's loop."""
    import torch
    from sb3_contrib import RecurrentPPO
    from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy

    from lem import LEM

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
    policy, layer = adapter("t_maze.py", "LEMPolicy"), LEM(3, 8)
    given = torch.randn(4 * 12, 3), tuple(torch.randn(1, 4, 8) for _ in range(2)), (torch.rand(4 * 12) < 0.2).float()
    outputs, state = policy._process_sequence(*given, layer)
    expected, last = RecurrentActorCriticPolicy._process_sequence(*given, layer)
    for a, b in zip((outputs, *state), (expected, *last)):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    return f"RecurrentPPO, {layers} layers, trained, saved and loaded; one call with `resets` equals the library's loop"


def torchrl() -> str:
    """LSTMModule trained on rows in which episodes begin, and the subclass of examples/adapters beside it."""
    import torch
    from tensordict import TensorDict

    keys = {"in_keys": ["x", "h", "c"], "out_keys": ["y", ("next", "h"), ("next", "c")]}
    random = torch.Generator().manual_seed(0)
    rows, steps = 32, 12
    begins = torch.rand(rows, steps, generator=random) < 0.2
    begins[:, 0] = True
    cues = torch.randint(2, (rows, steps), generator=random) * 2.0 - 1.0
    last = torch.where(begins, torch.arange(steps), 0).cummax(1).values  # where the episode of each step begins
    target = cues.gather(1, last)
    given = TensorDict(
        {"x": (cues * begins)[..., None], "is_init": begins[..., None]}
        | {key: torch.zeros(rows, steps, 1, 8) for key in ("h", "c")},
        [rows, steps],
    )
    with everywhere():
        from torchrl.modules import LSTMModule, set_recurrent_mode

        torch.manual_seed(0)
        module = LSTMModule(input_size=1, hidden_size=8, **keys)
        count(module)
        optimiser, losses = torch.optim.Adam(module.parameters(), lr=0.03), []
        for _ in range(60):
            with set_recurrent_mode(True):
                found = module(given.clone())["y"]
            loss = (found[..., 0] - target).square().mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
        assert losses[-1] < 0.2 * losses[0], losses
        with torch.no_grad():
            stepped, one = [], given[:, 0].clone()
            for t in range(steps):
                one.update(given[:, t].select("x", "is_init"))
                module(one)
                stepped.append(one["y"])
                one["h"], one["c"] = one["next", "h"], one["next", "c"]
        torch.testing.assert_close(torch.stack(stepped, 1), module_answer(module, given), rtol=1e-5, atol=1e-5)
    ours = adapter("torchrl_module.py", "LEMModule")(module.lstm, **keys)
    torch.testing.assert_close(module_answer(ours, given), torch.stack(stepped, 1), rtol=1e-5, atol=1e-5)
    return f"LSTMModule over sequences with resets (loss {losses[0]:.2f} to {losses[-1]:.2f}), one step at a time"


def module_answer(module: Any, given: Any) -> Any:
    import torch
    from torchrl.modules import set_recurrent_mode

    with torch.no_grad(), set_recurrent_mode(True):
        return module(given.clone())["y"]


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
    import torch
    from darts import TimeSeries
    from darts.models import BlockRNNModel, RNNModel
    from onnxruntime import InferenceSession

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
            x = torch.randn(1, *inner.train_sample_shape[0])
            found, *_ = InferenceSession(f"{folder}/model.onnx").run(None, {"x_past": x.numpy()})
            with torch.no_grad():
                answer = inner.eval()((x, None, None))
            np.testing.assert_allclose(found, answer[0] if isinstance(answer, tuple) else answer, atol=1e-5)
    return (
        ", ".join(done)
        + ": fit, predict, save; to_onnx with dynamo=True put in for Darts' dynamo=False, equal in onnxruntime"
    )


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
    """DeepAR and TFT with the subclass of examples/adapters."""
    import lightning as L
    import numpy as np
    import pandas as pd
    from pytorch_forecasting import DeepAR, TemporalFusionTransformer, TimeSeriesDataSet

    Layer = adapter("pytorch_forecasting_layer.py", "Layer")
    frame = pd.DataFrame(
        {"t": np.tile(np.arange(80), 2), "group": np.repeat(["a", "b"], 80), "value": np.sin(np.arange(160) / 5)}
    )
    done = []
    for kind, names, least in (
        (DeepAR, ["rnn"], 1),
        (TemporalFusionTransformer, ["lstm_encoder", "lstm_decoder"], 0),
    ):
        data = TimeSeriesDataSet(
            frame, time_idx="t", target="value", group_ids=["group"], min_encoder_length=least, max_encoder_length=20,
            max_prediction_length=5, time_varying_unknown_reals=["value"],
        )  # fmt: skip
        L.seed_everything(0)
        model = kind.from_dataset(data, learning_rate=0.01, hidden_size=10)
        for name in names:
            theirs = getattr(model, name)
            setattr(model, name, Layer(theirs.input_size, 10, theirs.num_layers, batch_first=True))
        trainer = L.Trainer(
            max_epochs=6, accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False,
            enable_model_summary=False,
        )  # fmt: skip
        loader = data.to_dataloader(batch_size=16)
        before = trainer.validate(model, loader, verbose=False)[0]["val_loss"]
        trainer.fit(model, loader)
        after = trainer.validate(model, loader, verbose=False)[0]["val_loss"]
        count(model)
        assert after < before, (before, after)
        quiet = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False}
        assert model.predict(loader, trainer_kwargs=quiet).isfinite().all()
        done.append(f"{kind.__name__} (loss {before:.2f} to {after:.2f})")
    return ", ".join(done) + ", with a subclass of LEM"


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


def in_an_environment(name: str, folder: Path) -> dict[str, Any]:
    """Run the fits of one library in its environment in a folder; build the environment if it is not there."""
    python, ready = str(folder / "bin" / "python"), folder / "packages.txt"
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
    if not ready.exists() or ready.read_text().split() != PEERS[name][0]:
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=False, symlinks=True)
        inside = next((folder / "lib").glob("python*")) / "site-packages"
        (inside / "base.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
        constraint = folder / "constraints.txt"
        constraint.write_text("torch==2.13.0\n")
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", str(constraint)]
        done = subprocess.run([*install, *PEERS[name][0]], text=True, capture_output=True)
        if done.returncode:
            return {"date": today, "works": False, "seen": f"cannot be installed: {done.stderr.strip()[-200:]}"}
        ready.write_text("\n".join(PEERS[name][0]))
    answer = folder / "answer.json"
    answer.unlink(missing_ok=True)
    done = subprocess.run([python, __file__, "--inside", str(answer), name], env=environment, cwd=folder)
    if not answer.exists():
        return {"date": today, "works": False, "seen": f"ended with status {done.returncode}"}
    return {"date": today, **json.loads(answer.read_text())}


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
    parser.add_argument("--environments", type=Path, help="where to keep the environments; default: they are deleted")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        Path(options.inside).write_text(json.dumps(run(options.names[0])))
        return 0
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in options.names or PEERS:
        with tempfile.TemporaryDirectory() as temporary:
            results[name] = in_an_environment(name, (options.environments or Path(temporary)).resolve() / name)
        print(f"{name}: {'works' if results[name]['works'] else 'fails'}: {results[name]['seen']}", flush=True)
        RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    head = PAGE.read_text().partition(MARK)[0]
    PAGE.write_text(f"{head}{MARK}\n\n{table(results)}")
    return 0 if all(results[name]["works"] for name in options.names or PEERS) else 1


if __name__ == "__main__":
    sys.exit(main())
