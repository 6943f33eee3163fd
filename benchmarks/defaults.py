"""Settle the estimators' defaults by cross-validation on the training splits: the test splits are never read.

    python benchmarks/defaults.py --data DIR      (DIR holds NAME/NAME_TRAIN.ts; default $LEM_DATA/ucr_uea)

Three folds (classes in equal parts), one seed; within each the estimator holds out a fifth of its own, as it always
does. Trainings differ from the first in one thing each. Every epoch's weights are kept, so that one training serves all
rules by which an epoch may be chosen. Each pair of training and rule is ranked on each data set by its mean score over
the folds, equal scores sharing a rank. The rule with the best mean rank over all sets and trainings is taken, then the
training with the best mean rank under this rule; where several trainings beat the first, all their changes together are
tried too. Each finished fit is kept in benchmarks/results/defaults.json, so that an interrupted run continues;
docs/estimators.md shows the table.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from sklearn.model_selection import KFold, StratifiedKFold

from estimators import REGRESSION, SETS, add_options, run, score
from lem.atomic import write_atomically
from lem.environment import environment
from lem.timeseries import LEMClassifier, LEMRegressor
from lem.timeseries.files import read
from lem.training.loop import evaluate
from lem.training.metrics import Metric

FOLDS = 3
FIRST = {"pool": "both", "learning_rate": 5e-3, "epochs": 300}
TRAININGS = ({}, {"pool": "last"}, {"learning_rate": 2e-3}, {"learning_rate": 1e-2}, {"epochs": 150})
RULES = ("best accuracy", "the same with patience 50", "the same with patience 100", "best loss", "last epoch")
RESULTS = Path(__file__).parent / "results" / "defaults.json"
PAGE = Path(__file__).parent.parent / "docs" / "estimators.md"
MARK = "<!-- table of benchmarks/defaults.py -->"


class Watched:
    """An estimator that keeps, for every epoch, what was held out says of it, and the weights."""

    def _train(self, train, valid, targets, seed, one_more=False):
        self._held, self._targets_seen, self._epochs = valid, targets, []
        self._of_loss = Metric(self._loss(targets), float, higher_is_better=False)
        super()._train(train, valid, targets, seed, one_more)

    def _report(self, event):
        super()._report(event)
        if event.record is not None:
            model = self.predictor_.model
            loss = evaluate(model, self._held, metric=self._of_loss, batch_size=128)
            weights = {name: weight.clone() for name, weight in model.state_dict().items()}
            self._epochs.append({"valid": event.record["valid"], "loss": loss, "weights": weights})

    def chosen(self, rule):
        """Return the epoch, from 0, that the rule takes."""
        if rule == "last epoch":
            return len(self._epochs) - 1
        if rule == "best loss":
            return int(np.argmin([epoch["loss"] for epoch in self._epochs]))
        patience = int(rule.rpartition(" ")[2]) if "patience" in rule else len(self._epochs)
        best, judge = 0, self._metric(self._targets_seen)
        for i, epoch in enumerate(self._epochs):
            if judge.better(epoch["valid"], self._epochs[best]["valid"]):
                best = i
            elif i - best >= patience:
                break
        return best


class WatchedClassifier(Watched, LEMClassifier):
    pass


class WatchedRegressor(Watched, LEMRegressor):
    pass


def label(change):
    return ", ".join(f"{key}={value}" for key, value in change.items()) or "first"


def fit(folder, name, change, fold):
    """Train once on one fold; return the score of every rule on the rest of the training split."""
    torch.set_num_threads(1)
    X, y, _ = read(folder / name / f"{name}_TRAIN.ts")
    cut = KFold if name in REGRESSION else StratifiedKFold
    train, valid = list(cut(FOLDS, shuffle=True, random_state=0).split(np.zeros(len(y)), y))[fold]
    setting = {**FIRST, **change}
    kind = WatchedRegressor if name in REGRESSION else WatchedClassifier
    # The pool is no option of the estimators; what they pass on to the model may override it.
    model = kind(cell_options={"pool": setting.pop("pool")}, random_state=0, **setting)
    begun = time.process_time()
    model.fit([X[i] for i in train], y[train])
    result = {"cpu_seconds": round(time.process_time() - begun, 2), "scores": {}, "epochs": {}}
    for rule in RULES:
        epoch = model.chosen(rule)
        model.predictor_.model.load_state_dict(model._epochs[epoch]["weights"])
        result["scores"][rule] = score(name, model, [X[i] for i in valid], y[valid])
        result["epochs"][rule] = epoch + 1
    assert result["epochs"][RULES[0]] == model.best_epoch_, "the first rule must be the estimator's own"
    return result


def tasks(folder, trainings):
    return {
        f"{label(change)}/{name}/{fold}": (folder, name, change, fold)
        for change in trainings
        for name in SETS
        for fold in range(FOLDS)
    }


def means(results, training, rule):
    """Return the mean score over the folds on every data set."""
    fits = results["fits"]
    return [np.mean([fits[f"{training}/{n}/{k}"]["scores"][rule] for k in range(FOLDS)]) for n in SETS]


def mean_ranks(results, pairs):
    """Return the mean rank of each pair of training and rule over the data sets: 1 is the best, equals share theirs."""
    scores = np.array([means(results, *pair) for pair in pairs])
    losses = np.round(np.where([name in REGRESSION for name in SETS], scores, -scores), 9)
    below, equal = ((compare(losses[None], losses[:, None])).sum(1) for compare in (np.less, np.equal))
    return (below + 0.5 * (equal + 1)).mean(1)


def choose(results, trainings):
    """Return the mean rank of every rule over all trainings, and of every training under the best rule."""
    pairs = [(label(change), rule) for change in trainings for rule in RULES]
    by_rule = mean_ranks(results, pairs).reshape(len(trainings), len(RULES)).mean(0)
    rule = RULES[int(by_rule.argmin())]
    return dict(zip(RULES, by_rule)), rule, mean_ranks(results, [(label(change), rule) for change in trainings])


def table(results, trainings):
    by_rule, rule, by_training = choose(results, trainings)
    lines = ["| epoch chosen by | mean rank over all trainings |", "|---|---|"]
    lines += [f"| {name} | {rank:.2f} |" for name, rank in sorted(by_rule.items(), key=lambda pair: pair[1])]
    lines += ["", f"Trainings, with the epoch chosen by {rule}:", ""]
    lines += [f"| training | {' | '.join(SETS)} | mean rank | CPU time |", f"|---|{'---|' * len(SETS)}---|---|"]
    for i in np.argsort(by_training, kind="stable"):
        training = label(trainings[i])
        scores = " | ".join(f"{mean:.3f}" for mean in means(results, training, rule))
        cpu = sum(results["fits"][f"{training}/{name}/{k}"]["cpu_seconds"] for name in SETS for k in range(FOLDS))
        lines.append(f"| {training} | {scores} | {by_training[i]:.2f} | {cpu:.0f} s |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add_options(parser)
    options = parser.parse_args()
    results = {"environment": environment(), "first": FIRST, "fits": {}}
    if RESULTS.is_file():
        results = json.loads(RESULTS.read_text())
    run(fit, tasks(options.data, TRAININGS), results, RESULTS, options.jobs, options.minutes)
    _, _, ranks = choose(results, TRAININGS)
    together = {}
    for i in np.argsort(ranks, kind="stable"):
        if ranks[i] < ranks[0]:
            together = {**TRAININGS[i], **together}  # of two values of one thing the better
    trainings = [*TRAININGS, together] if together not in TRAININGS else list(TRAININGS)
    run(fit, tasks(options.data, trainings), results, RESULTS, options.jobs, options.minutes)
    by_rule, rule, ranks = choose(results, trainings)
    results["mean_ranks"] = {"rules": by_rule, "trainings": dict(zip(map(label, trainings), ranks))}
    results["chosen"] = {**FIRST, **trainings[int(ranks.argmin())], "epoch chosen by": rule}
    write_atomically(RESULTS, (json.dumps(results, indent=1) + "\n").encode())
    shown = table(results, trainings)
    print(shown, results["chosen"], sep="\n")
    before, mark, rest = PAGE.read_text().partition(f"{MARK}\n")
    if mark:
        PAGE.write_text(f"{before}{mark}{shown}\n{rest[rest.index('<!-- end -->') :]}")


if __name__ == "__main__":
    main()
