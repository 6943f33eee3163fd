"""`tune_file`: choose the options of an estimator for a file of series, by cross-validation.

The series that `fit_file` would keep for scoring are set aside first; the search sees the others only. Every finished
trial is in the study's journal, so that the same call continues an interrupted search.
"""

import csv
import hashlib
import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from lem.atomic import save_figure, write_atomically
from lem.extras import extra, pyplot
from lem.timeseries.files import SeriesFile
from lem.timeseries.fitting import make_estimator, parts, take, understand
from lem.timeseries.layout import Reading
from lem.timeseries.scores import one_score
from lem.training.data import mix
from lem.wording import InputError, check_choice

SAMPLERS = ("random", "tpe")
METRICS = {
    "classify": {"accuracy": True, "balanced_accuracy": True, "log_loss": False},
    "regress": {"rmse": False, "mae": False},
}
"""The metrics of each task, the default first, and whether more is better."""
SEARCH: dict[str, dict[str, Any]] = {
    "features": {"effort": ["quick", "default", "best"], "cell": ["lem", "gru", "lstm", "cornn"]},
    "lem": {
        "hidden_size": [16, 32, 64, 128],
        "learning_rate": {"low": 1e-3, "high": 2e-2, "log": True},
        "dropout": {"low": 0.0, "high": 0.5},
        "bidirectional": [False, True],
    },
}
"""What is searched by default, for each network; without `network` both are."""


class StoppedError(Exception):
    """The search was interrupted within a trial."""


@dataclass
class Step:
    """The progress of a search: the trial and fold that begin, or a trial that ended."""

    trial: int
    trials: int
    fold: int
    folds: int
    best: float | None
    metric: str
    seconds_left: float | None
    ended: "Trial | None" = None


@dataclass
class Trial:
    """One finished trial.

    Attributes:
        number: of the trial; 1 has the default options.
        options: what was drawn.
        score: the mean score over the folds.
        folds: the score of each fold; fewer than there are folds for a pruned trial.
        state: "complete" or "pruned".
        seconds: the time of the trial.
    """

    number: int
    options: dict[str, Any]
    score: float
    folds: list[float]
    state: str
    seconds: float


@dataclass
class TunedFile:
    """What `tune_file` returns.

    Attributes:
        best: the best trial.
        trials: all finished trials.
        options: the options of the best trial with the fixed ones, for `fit_file`.
        metric: what was compared.
        data: the file as it was understood.
        stopped: whether the search was interrupted.
        files: what was written: "trials", "options" and "figure".
    """

    best: Trial
    trials: list[Trial]
    options: dict[str, Any]
    metric: str
    data: SeriesFile
    stopped: bool = False
    files: dict[str, Path] = field(default_factory=dict)


def tune_file(
    path: str | Path,
    folder: str | Path,
    reading: Reading,
    *,
    task: str | None = None,
    trials: int = 20,
    folds: int = 5,
    metric: str | None = None,
    search: dict[str, Any] | None = None,
    options: dict[str, Any] | None = None,
    sampler: str = "tpe",
    prune: bool = False,
    test: str | Path | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
    understood: Callable[[SeriesFile], None] | None = None,
    report: Callable[[Step], None] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> TunedFile:
    """Search the options of the estimator for a file of series; needs the extra `tune` (Optuna).

    Args:
        path: the file.
        folder: the folder of the study; the same call with the same folder continues it.
        reading: how the file is read.
        task: "classify" or "regress", by default as in `fit_file`.
        trials: the number of trials; the first one has the default options.
        folds: of the cross-validation; for classes at most as many as the smallest class has series.
        metric: what is compared: "accuracy", "balanced_accuracy" or "log_loss"; "rmse" or "mae".
        search: for each option a list of values or {"low": , "high": , "log": }; by default `SEARCH`.
        options: options that are fixed.
        sampler: "tpe" (tree-structured Parzen estimator), or "random".
        prune: give up a trial whose first folds fall behind the median of the trials before.
        test: a file kept for scoring; all series of `path` are then searched on.
        test_fraction: without `test`, the part of the series that is kept for scoring.
        seed: of the split, the folds, the values drawn and the models.
        understood: called with the data before the search.
        report: called when a fold begins and when a trial ends.
        should_stop: asked between folds and during training.

    Examples:
        >>> from lem.timeseries.example import write_example
        >>> from lem.timeseries.layout import Reading
        >>> from lem.timeseries.tuning import tune_file
        >>> reading = Reading(series="pump_id", time="time", target="fault")
        >>> options = {"effort": "quick", "network": "features"}
        >>> search = {"causal": [False, True]}
        >>> tuned = tune_file(
        ...     write_example("pumps.csv"), "study", reading, trials=2, folds=2, options=options, search=search
        ... )
        >>> len(tuned.trials), tuned.metric
        (2, 'accuracy')
    """
    _check(trials, folds, sampler)
    fixed = dict(options or {})
    data, task = understand(path, reading, task, None, test_fraction, seed)
    metric = _metric(task, metric)
    space = _space(search, fixed, task)
    for name, choice in ((name, choice) for part in space.values() for name, choice in part.items()):
        make_estimator(task, {**fixed, name: choice[0] if isinstance(choice, list) else choice["low"]})
    if understood is not None:
        understood(data)
    (X, y, times), _, _ = parts(data, task, None, test, test_fraction, seed, reading)
    which, folds = _folds(y, folds, task, seed)
    about = {
        "data": hashlib.sha256(Path(path).read_bytes()).hexdigest(),
        "reading": {name: value for name, value in reading.__dict__.items() if value not in (None, ())},
        "task": task,
        "folds": folds,
        "metric": metric,
        "search": space,
        "options": fixed,
        "test_fraction": None if test is not None else test_fraction,
        "seed": seed,
    }
    with _study(Path(folder), about, METRICS[task][metric], prune) as study:
        work = _Search(study, space, fixed, task, metric, sampler, reading.missing, seed, trials, report, should_stop)
        work.times, work.time_unit = times, data.schema.interval
        stopped = work.run(X, y, which, folds)
        done = work.done()
        if not any(trial.state == "complete" for trial in done):
            raise KeyboardInterrupt("no trial was finished; run the same command again to start over")
        best = (max if METRICS[task][metric] else min)(
            (t for t in done if t.state == "complete"), key=lambda t: t.score
        )
        chosen = {**fixed, **best.options}
        files = _write(Path(folder), done, best, chosen, metric, Path(path).name, folds)
    return TunedFile(best, done, chosen, metric, data, stopped, files)


class _Search:
    """The trials of one study."""

    def __init__(
        self,
        study: Any,
        space: dict[str, dict[str, Any]],
        fixed: dict[str, Any],
        task: str,
        metric: str,
        sampler: str,
        missing: str,
        seed: int,
        trials: int,
        report: Callable[[Step], None] | None,
        should_stop: Callable[[], bool],
    ) -> None:
        self.study, self.space, self.fixed, self.task, self.metric = study, space, fixed, task, metric
        self.sampler, self.missing, self.seed, self.trials = sampler, missing, seed, trials
        self.report, self.should_stop = report, should_stop
        self.times: list[np.ndarray] | None = None
        self.time_unit: float | None = None

    def done(self) -> list[Trial]:
        """Return the finished trials, those of earlier calls too."""
        kinds = _optuna().trial.TrialState
        found = self.study.get_trials(deepcopy=False, states=(kinds.COMPLETE, kinds.PRUNED))
        return [
            Trial(
                place + 1,
                trial.user_attrs["options"],
                trial.user_attrs["score"],
                trial.user_attrs["folds"],
                trial.state.name.lower(),
                trial.user_attrs["seconds"],
            )
            for place, trial in enumerate(found)
        ]

    def run(self, X: Any, y: np.ndarray, which: np.ndarray, folds: int) -> bool:
        """Do the trials that are missing; return whether the search was interrupted."""
        optuna = _optuna()
        kind = optuna.trial.TrialState
        for trial in self.study.get_trials(deepcopy=False, states=(kind.RUNNING,)):
            # Of a process that has ended: this one holds the lock.
            self.study.tell(trial.number, state=kind.FAIL)
            self.study.enqueue_trial(trial.params)
        if not self.study.get_trials(deepcopy=False):
            self.study.enqueue_trial(self._defaults())
        begun, first = monotonic(), len(self.done())
        while (count := len(self.done())) < self.trials:
            if self.should_stop():
                return True
            sampler = optuna.samplers.TPESampler if self.sampler == "tpe" else optuna.samplers.RandomSampler
            self.study.sampler = sampler(seed=mix(self.seed, count) % 2**32)
            trial = self.study.ask()
            left = None if count == first else (monotonic() - begun) / (count - first) * (self.trials - count)
            try:
                ended = self._try(trial, X, y, which, folds, count, left)
            except StoppedError:
                self.study.tell(trial, state=kind.FAIL)
                self.study.enqueue_trial(trial.params)
                return True
            if self.report is not None:
                self.report(Step(count, self.trials, folds, folds, self._best(), self.metric, left, ended))
        return False

    def _try(
        self, trial: Any, X: Any, y: np.ndarray, which: np.ndarray, folds: int, count: int, left: float | None
    ) -> Trial:
        optuna = _optuna()
        drawn = self._draw(trial)
        begun, scores, state = monotonic(), [], "complete"
        same = next((t for t in self.done() if t.options == drawn and t.state == "complete"), None)
        if same is not None:  # nothing is random but what is drawn
            scores = same.folds
        for fold in range(folds if same is None else 0):
            if self.report is not None:
                self.report(Step(count, self.trials, fold, folds, self._best(), self.metric, left))
            held = which == fold
            estimator = make_estimator(
                self.task,
                {**self.fixed, **drawn, "missing": self.missing, "random_state": mix(self.seed, fold) % 2**31},
            )
            estimator._should_stop = self.should_stop
            trained, judged = (
                {} if self.times is None else {"times": take(self.times, rows)} for rows in (~held, held)
            )
            estimator.fit(take(X, ~held), y[~held], **trained, **({"time_unit": self.time_unit} if trained else {}))
            if self.should_stop():
                raise StoppedError
            scores.append(one_score(self.metric, estimator, take(X, held), y[held], **judged))
            trial.report(float(np.mean(scores)), fold)
            if fold + 1 < folds and trial.should_prune():
                state = "pruned"
                break
        found = Trial(count + 1, drawn, float(np.mean(scores)), scores, state, round(monotonic() - begun, 2))
        for name in ("options", "score", "folds", "seconds"):
            trial.set_user_attr(name, getattr(found, name))
        kinds = optuna.trial.TrialState
        if state == "complete":
            self.study.tell(trial, found.score)
        else:
            self.study.tell(trial, state=kinds.PRUNED)
        return found

    def _best(self) -> float | None:
        scores = [trial.score for trial in self.done() if trial.state == "complete"]
        return (max if METRICS[self.task][self.metric] else min)(scores) if scores else None

    def _draw(self, trial: Any) -> dict[str, Any]:
        network = next(iter(self.space))
        drawn: dict[str, Any] = {}
        if len(self.space) > 1:
            network = drawn["network"] = trial.suggest_categorical("network", list(self.space))
        for name, choice in self.space[network].items():
            key = name if len(self.space) == 1 else f"{network}.{name}"
            if isinstance(choice, list):
                drawn[name] = trial.suggest_categorical(key, choice)
            else:
                whole = isinstance(choice["low"], int) and isinstance(choice["high"], int)
                suggest = trial.suggest_int if whole else trial.suggest_float
                drawn[name] = suggest(key, choice["low"], choice["high"], log=choice.get("log", False))
        return drawn

    def _defaults(self) -> dict[str, Any]:
        """Return the default options as far as the search contains them."""
        defaults = make_estimator(self.task, {}).get_params()
        network = next(iter(self.space))
        found: dict[str, Any] = {"network": network} if len(self.space) > 1 else {}
        for name, choice in self.space[network].items():
            value = defaults[name]
            known = value in choice if isinstance(choice, list) else choice["low"] <= value <= choice["high"]
            if known:
                found[name if len(self.space) == 1 else f"{network}.{name}"] = value
        return found


# --- what is asked --------------------------------------------------------------------------------------------------


def _check(trials: int, folds: int, sampler: str) -> None:
    for name, value, least in (("trials", trials, 1), ("folds", folds, 2)):
        if value < least:
            raise InputError(lambda option, n=name, v=value, k=least: f"{option(n)} must be at least {k}; got {v}.")
    check_choice(None, "sampler", sampler, SAMPLERS)


def _metric(task: str, metric: str | None) -> str:
    metric = metric or next(iter(METRICS[task]))
    check_choice(None, "metric", metric, METRICS[task])
    return metric


def _space(search: dict[str, Any] | None, fixed: dict[str, Any], task: str) -> dict[str, dict[str, Any]]:
    """Return what is searched for each network; fixed options are not."""
    network = fixed.get("network")
    if search is not None:
        if not search:
            raise InputError("The search must have at least one option; its [search] section is empty.")
        for name, choice in search.items():
            _check_choice(name, choice)
            if name in fixed:
                raise InputError(lambda option, n=name: f"{option(n)} cannot be both fixed and searched.")
        return {str(network or "auto"): search}
    found = {name: part for name, part in SEARCH.items() if network in (None, "auto", name)}
    if network in (None, "auto"):
        fixed.pop("network", None)
        # An option that only one of the networks has decides for it.
        if "effort" in fixed or "causal" in fixed:
            del found["lem"]
        elif any(name in fixed for name in ("hidden_size", "epochs", "learning_rate", "dropout", "bidirectional")):
            del found["features"]
        if len(found) == 1:
            fixed["network"] = next(iter(found))
    found = {name: {k: v for k, v in part.items() if k not in fixed} for name, part in found.items()}
    if not any(found.values()):
        raise InputError("There is nothing to search: every option of the search is fixed.")
    return found


def _check_choice(name: str, choice: Any) -> None:
    if isinstance(choice, list) and choice:
        return
    number = (int, float)
    if (
        isinstance(choice, dict)
        and set(choice) <= {"low", "high", "log"}
        and all(isinstance(choice.get(end), number) and not isinstance(choice[end], bool) for end in ("low", "high"))
        and choice["low"] < choice["high"]
        and (not choice.get("log") or choice["low"] > 0)
    ):
        return
    raise InputError(
        f"`{name}` of [search] must be a list of values, or {{low = , high = , log = true}} with low below high; got "
        f"{choice!r}."
    )


def _folds(y: np.ndarray, folds: int, task: str, seed: int) -> tuple[np.ndarray, int]:
    """Deal the series into folds, the classes in equal parts; return the fold of each and their number."""
    random = np.random.default_rng(mix(seed, 1))
    groups = np.unique(y, return_inverse=True)[1] if task == "classify" else np.zeros(len(y), dtype=int)
    smallest = int(np.bincount(groups.ravel()).min()) if task == "classify" else len(y)
    folds = min(folds, max(2, smallest))
    if len(y) < 2 * folds:
        raise InputError(
            lambda option: (
                f"Cross-validation with {option('folds')} {folds} needs at least {2 * folds} series; got {len(y)}."
            )
        )
    which, start = np.empty(len(y), dtype=int), 0
    for group in np.unique(groups):
        rows = random.permutation(np.flatnonzero(groups.ravel() == group))
        which[rows] = (start + np.arange(len(rows))) % folds
        start += len(rows)
    return which, folds


# --- the study ------------------------------------------------------------------------------------------------------


@contextmanager
def _study(folder: Path, about: dict[str, Any], higher_is_better: bool, prune: bool) -> Iterator[Any]:
    """Open the study of a folder, for this process alone."""
    optuna = _optuna()
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / "lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise RuntimeError(
            f"The study in {folder} is locked by another process. Wait for it, or give another --study."
        ) from None
    try:
        backend = optuna.storages.journal.JournalFileBackend(str(folder / "study.journal"))
        study = optuna.create_study(
            storage=optuna.storages.JournalStorage(backend),
            study_name="study",
            direction="maximize" if higher_is_better else "minimize",
            load_if_exists=True,
            pruner=optuna.pruners.MedianPruner(n_startup_trials=3) if prune else optuna.pruners.NopPruner(),
        )
        about = json.loads(json.dumps(about))
        before = study.user_attrs.get("about")
        if before is None:
            study.set_user_attr("about", about)
        elif before != about:
            other = ", ".join(name for name in about if before.get(name) != about[name])
            raise InputError(
                lambda option: (
                    f"{folder} holds a study with other settings ({other}). Give another {option('study')}, or "
                    "remove the folder."
                )
            )
        yield study
    finally:
        lock.release()


def _write(
    folder: Path, done: list[Trial], best: Trial, options: dict[str, Any], metric: str, data: str, folds: int
) -> dict[str, Path]:
    keys = list(dict.fromkeys(key for trial in done for key in trial.options))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["trial", "state", metric, "spread", *keys, "seconds"])
    for trial in done:
        spread = f"{np.std(trial.folds):.6g}"
        values = [trial.options.get(key, "") for key in keys]
        writer.writerow([trial.number, trial.state, f"{trial.score:.6g}", spread, *values, trial.seconds])
    files = {"trials": folder / "trials.csv", "options": folder / "options.toml"}
    write_atomically(files["trials"], text.getvalue().encode())
    said = f"# trial {best.number} of {len(done)} on {data}: {metric} {best.score:.6g} over {folds} folds\n"
    lines = [f"{name} = {_toml(value)}\n" for name, value in options.items() if value is not None]
    write_atomically(files["options"], (said + "".join(lines)).encode())
    try:
        plt = pyplot()
    except ImportError:
        return files
    chart, axis = plt.subplots(figsize=(6, 3.2), layout="constrained")
    for state, mark in (("complete", "o"), ("pruned", "x")):
        some = [trial for trial in done if trial.state == state]
        if some:
            axis.plot([t.number for t in some], [t.score for t in some], mark, color="0.4", label=state)
    axis.plot(best.number, best.score, "o", color="tab:red", label=f"best, {best.score:.4g}")
    axis.set(xlabel="trial", ylabel=metric.replace("_", " "), title=f"{data}: {folds}-fold cross-validation")
    axis.legend(frameon=False)
    files["figure"] = folder / "trials.png"
    save_figure(chart, files["figure"])
    plt.close(chart)
    return files


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(entry)}" for key, entry in value.items()) + "}"
    return json.dumps(value)


def _optuna() -> Any:
    optuna = extra("optuna", "Tuning needs")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna
