"""In-hospital mortality, cross-validated: `LEM_DATA=DATA python benchmarks/physionet2012.py [--json FILE]`.

The recipes of `physionet2012`, each trained on the five folds of the task, with one seed a fold. The epoch is chosen by
the log-loss on the validation stays; AUROC and AUPRC (average precision) are of the test stays of the fold. A finished
fold is read from the JSON file, so an interrupted study continues.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from sklearn.metrics import average_precision_score, roc_auc_score

from lem.experiments.recipe import load_recipe
from lem.experiments.runner import build_model
from lem.nn.model import SequenceModel
from lem.tasks import TASKS
from lem.tasks.physionet2012 import FOLDS
from lem.training.data import ArraySplit
from lem.training.loop import fit

RECIPES = ("lem", "lem-hourly", "lstm", "gru")


@torch.no_grad()
def scores(model: SequenceModel, split: ArraySplit) -> tuple[float, float]:
    """Return AUROC and AUPRC on a split."""
    model.eval()
    found = []
    for step in range(split.steps(100)):
        batch = split.batch(step, 100)
        answer = model(batch.inputs, None, batch.lengths, **batch.timing)[0]
        found.append(torch.log_softmax(answer.double(), 1)[:, 1])
    probability, deaths = torch.cat(found).numpy(), split.targets.numpy()
    return float(roc_auc_score(deaths, probability)), float(average_precision_score(deaths, probability))


def train(name: str, fold: int, overrides: dict[str, object], test: bool = True) -> dict[str, object]:
    """Train a recipe on one fold."""
    recipe = load_recipe(f"physionet2012/{name}", {**overrides, "task.fold": fold})
    task = TASKS[recipe.task["name"]](**{key: value for key, value in recipe.task.items() if key != "name"})
    model = build_model(recipe, task, seed=fold)
    start = time.process_time()
    progress = fit(model, task.train, task.valid, loss=task.loss, metric=task.judge, seed=fold, **recipe.train)
    seconds = time.process_time() - start
    valid = scores(model, task.valid)
    found = {
        "recipe": name,
        "fold": fold,
        "valid log-loss": progress.best,
        "best epoch": progress.best_epoch,
        "valid AUROC": valid[0],
        "valid AUPRC": valid[1],
        "parameters": model.count_parameters()["all"],
        "processor seconds": round(seconds),
    }
    if test:
        found["AUROC"], found["AUPRC"] = scores(model, task.test())
    return found


def main() -> None:
    """Train what is missing, print the table, write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--recipes", nargs="+", default=RECIPES)
    parser.add_argument("--valid-only", action="store_true", help="do not open the test split: to choose settings")
    parser.add_argument("--folds", type=int, nargs="+", default=range(FOLDS))
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="values of the recipes to change")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    overrides = {key: json.loads(value) for key, value in (item.split("=", 1) for item in arguments.set)}
    runs = json.loads(arguments.json.read_text())["runs"] if arguments.json and arguments.json.exists() else []
    done = {(run["recipe"], run["fold"]) for run in runs}
    for fold in arguments.folds:
        for name in arguments.recipes:
            if (name, fold) in done:
                continue
            runs.append(train(name, fold, overrides, test=not arguments.valid_only))
            print(runs[-1], flush=True)
            if arguments.json:
                about = {"torch": torch.__version__, "threads": 1, "folds": FOLDS}
                arguments.json.write_text(json.dumps({**about, "runs": runs}, indent=1) + "\n")
    for name in arguments.recipes:
        for metric in ("valid AUROC",) if arguments.valid_only else ("AUROC", "AUPRC"):
            values = [run[metric] for run in runs if run["recipe"] == name]
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            print(f"{name}: {metric} {statistics.mean(values):.4f} +- {spread:.4f} over {len(values)} folds")


if __name__ == "__main__":
    main()
