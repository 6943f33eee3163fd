"""Search over a recipe's [search] ranges by Optuna, with any number of workers on any number of machines.

The paper's method: random search, the best validation score wins. A study has a fixed number of places, each to be
filled by one trial. Workers claim waiting trials one by one, so none is done twice; a worker's trial carries a beat,
and where that stops the trial is marked as failed and its place is filled again with the same values, continuing
from the dead worker's checkpoint. Nothing but the shared storage connects the workers.
"""

import contextlib
import csv
import io
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lem.atomic import inside, save_figure, write_atomically
from lem.experiments.recipe import Recipe, with_values
from lem.experiments.runner import build_task, run
from lem.experiments.storage import import_optuna
from lem.extras import pyplot
from lem.tasks import METRIC_BY_TASK
from lem.training.data import mix
from lem.training.loop import Event
from lem.training.metrics import METRICS
from lem.wording import check_choice

SAMPLERS = ("random", "tpe")
ATTEMPTS = 3
"""How often a place is filled before the study gives up on it."""


def study_folder(runs: Path, recipe: Recipe, study: str) -> Path:
    """Return the folder of a recipe's study, `runs/<task>/<model>/tune-<study>`."""
    if not study or any(char in "/\\:" or ord(char) < 32 for char in study):
        raise ValueError(
            f"The name of a study must be a plain word, since its folder is named after it; got {study!r}."
        )
    return inside(runs, recipe.name, f"tune-{study}")


def serve(storage: Any, host: str, port: int) -> None:
    """Offer a storage to other machines as grpc://host:port, until the process is ended."""
    optuna = import_optuna()
    with warnings.catch_warnings(category=optuna.exceptions.ExperimentalWarning, action="ignore"):
        optuna.storages.run_grpc_proxy_server(storage, host=host, port=port)


class Study:
    """A search over one recipe, as any of its workers sees it.

    Args:
        recipe: what to tune, with the ranges in its [search].
        storage: what `open_storage` returned.
        name: of the study; the same name in the same storage is the same study, continued.
        trials: the number of places to fill.
        sampler: "random", or "tpe" (tree-structured Parzen estimator), which learns from the trials so far.
        prune: stop a trial whose validation score falls behind the median of the others at the same epoch.
        seed: of the values drawn, together with the place; and of every trial's weights.
        grace: seconds without a beat after which a worker counts as dead.
    """

    def __init__(
        self,
        recipe: Recipe,
        storage: Any,
        name: str,
        *,
        trials: int,
        higher_is_better: bool,
        sampler: str = "random",
        prune: bool = False,
        seed: int = 0,
        grace: float = 60.0,
    ) -> None:
        optuna = import_optuna()
        if not recipe.search:
            raise ValueError(f"Recipe {recipe.name} has no section [search], so there is nothing to tune.")
        check_choice(None, "sampler", sampler, SAMPLERS)
        if trials < 1:
            raise ValueError(f"`trials` of a study must be a positive integer; got {trials}.")
        self.recipe, self.storage, self.name = recipe, storage, name
        self.trials, self.sampler, self.seed, self.grace = trials, sampler, seed, grace
        self._beats: dict[int, tuple[Any, float]] = {}
        median = optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=recipe.train["epochs"] // 10)
        self.study = optuna.create_study(
            storage=storage,
            study_name=name,
            direction="maximize" if higher_is_better else "minimize",
            load_if_exists=True,
            pruner=median if prune else optuna.pruners.NopPruner(),
        )
        wanted = "MAXIMIZE" if higher_is_better else "MINIMIZE"
        if self.study.direction.name != wanted:
            raise ValueError(
                f"Study {name!r} exists and does not {wanted.lower()} the metric of {recipe.name}. Choose another name."
            )

    # --- the places and who works on them -------------------------------------------------------------------------

    def all_trials(self, *states: str) -> list[Any]:
        """Return the trials in the given states, or all, as they stand in the storage; without those dropped."""
        kinds = tuple(import_optuna().trial.TrialState[state] for state in states) or None
        found = self.study.get_trials(deepcopy=False, states=kinds)
        return [trial for trial in found if not trial.user_attrs.get("dropped")]

    def done(self) -> list[Any]:
        """Return the trials that ended by themselves, one a place."""
        return self.all_trials("COMPLETE", "PRUNED")

    def fill(self) -> None:
        """Make a trial wait for every place that has none, with the values of the one that failed there."""
        tries: dict[int, list[Any]] = {place: [] for place in range(self.trials)}
        for trial in self.all_trials():
            tries.setdefault(trial.user_attrs.get("place", -1), []).append(trial)
        for place in range(self.trials):
            if any(trial.state.name != "FAIL" for trial in tries[place]):
                continue
            if len(tries[place]) >= ATTEMPTS:
                raise RuntimeError(
                    f"Trial {place} of study {self.name!r} failed {ATTEMPTS} times, last with "
                    f"{tries[place][-1].user_attrs.get('reason', 'a dead worker')}."
                )
            values = tries[place][-1].params if tries[place] else {}
            self.study.enqueue_trial(values, user_attrs={"place": place})

    def claim(self) -> Any | None:
        """Claim a waiting trial, or return None if none is waiting."""
        optuna = import_optuna()
        for waiting in self.all_trials("WAITING"):
            try:
                if not self._set(waiting, "RUNNING"):
                    continue  # another worker was faster
            except optuna.exceptions.UpdateFinishedTrialError:
                continue
            place = waiting.user_attrs["place"]
            same = [t for t in self.all_trials() if t.user_attrs.get("place") == place and t.state.name != "FAIL"]
            if any(other.number < waiting.number for other in same):
                self.storage.set_trial_user_attr(self._id(waiting), "dropped", True)
                self._set(waiting, "FAIL")  # two workers filled one place at once
                continue
            return optuna.Trial(self.study, self._id(waiting))
        return None

    def fail_dead(self) -> None:
        """Mark the trials whose worker gave no sign for `grace` seconds, by the clock of this process."""
        now, running = time.monotonic(), self.all_trials("RUNNING")
        for trial in running:
            beat, since = self._beats.get(trial.number, (None, now))
            latest = trial.user_attrs.get("beat", 0)
            self._beats[trial.number] = (latest, since if beat == latest else now)
            if beat == latest and now - since > self.grace:
                with contextlib.suppress(import_optuna().exceptions.UpdateFinishedTrialError):
                    self._set(trial, "FAIL")

    def _id(self, trial: Any) -> int:
        study = self.storage.get_study_id_from_name(self.name)
        return int(self.storage.get_trial_id_from_study_id_trial_number(study, trial.number))

    def _set(self, trial: Any, state: str, value: float | None = None) -> bool:
        values = None if value is None else [value]
        kind = import_optuna().trial.TrialState[state]
        return bool(self.storage.set_trial_state_values(self._id(trial), kind, values))

    @contextlib.contextmanager
    def _beating(self, trial: Any) -> Iterator[threading.Event]:
        """Give signs of life for a trial; the event is set when it was taken away, or training must stop."""
        lost, over = threading.Event(), threading.Event()

        def beat() -> None:
            count = 0
            while not over.wait(self.grace / 5.0):
                count += 1
                try:
                    self.storage.set_trial_user_attr(self._id(trial), "beat", count)
                except import_optuna().exceptions.UpdateFinishedTrialError:
                    lost.set()
                    return

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield lost
        finally:
            over.set()
            thread.join()

    # --- working --------------------------------------------------------------------------------------------------

    def suggest(self, trial: Any) -> dict[str, Any]:
        """Draw the trial's values; by random search they depend on the seed and the place alone."""
        optuna = import_optuna()
        place = trial.user_attrs["place"]
        kind = optuna.samplers.RandomSampler if self.sampler == "random" else optuna.samplers.TPESampler
        self.study.sampler = kind(seed=mix(self.seed, place) % 2**32)
        values: dict[str, Any] = {}
        for key, choice in self.recipe.search.items():
            if isinstance(choice, list):
                values[key] = trial.suggest_categorical(key, choice)
            else:
                whole = isinstance(choice["low"], int) and isinstance(choice["high"], int)
                draw = trial.suggest_int if whole else trial.suggest_float
                values[key] = draw(key, choice["low"], choice["high"], log=choice.get("log", False))
        return values

    def work(self, runs: Path, should_stop: Callable[[], bool], tell: Callable[[str], None] = lambda _: None) -> None:
        """Do trials until every place is filled, waiting for those of other workers; `runs` gets their folders."""
        task = None if any(key.startswith("task.") for key in self.recipe.search) else build_task(self.recipe)
        while not should_stop():
            self.fail_dead()
            self.fill()
            trial = self.claim()
            if trial is not None:
                self._try(trial, task, runs, should_stop, tell)
            elif len(self.done()) >= self.trials:
                return
            else:
                time.sleep(min(1.0, self.grace / 5.0))

    def _try(
        self, trial: Any, task: Any, runs: Path, should_stop: Callable[[], bool], tell: Callable[[str], None]
    ) -> None:
        values = self.suggest(trial)
        recipe = with_values(self.recipe, values)
        hopeless: list[int] = []

        def listen(event: Event) -> None:
            if event.record is not None:
                try:
                    trial.report(event.record["valid"], event.record["epoch"])
                except import_optuna().exceptions.UpdateFinishedTrialError:
                    lost.set()
                if trial.should_prune():
                    hopeless.append(event.record["epoch"])

        def stop() -> bool:
            return should_stop() or bool(hopeless) or lost.is_set()

        state, reason, value = "COMPLETE", "", None
        with self._beating(trial) as lost:
            try:
                folder, progress = run(recipe, self.seed, runs, listen, stop, open_test=False, wait=True, task=task)
                trial.set_user_attr("run", str(folder.path))
                if folder.finished:
                    value = folder.result()["valid"]
                elif hopeless:
                    state, reason = "PRUNED", f"behind the median at epoch {hopeless[0]}"
                    value = progress.best if progress else None
                else:
                    state, reason = "FAIL", "interrupted"
            except FloatingPointError as error:
                state, reason = "PRUNED", str(error)
            except BaseException as error:
                reason = f"{type(error).__name__}: {error}"
                self._end(trial, "FAIL", reason, None)
                raise
            if lost.is_set():
                tell(f"trial {trial.number} was taken over by another worker")
                return
            self._end(trial, state, reason, value)
        drawn = ", ".join(f"{key} {_short(value)}" for key, value in values.items())
        tell(f"trial {trial.number}: {state.lower()}, validation {_short(value)}, with {drawn}")

    def _end(self, trial: Any, state: str, reason: str, value: float | None) -> None:
        with contextlib.suppress(import_optuna().exceptions.UpdateFinishedTrialError):
            if reason:
                trial.set_user_attr("reason", reason)
            self._set(trial, state, value)

    # --- what comes out -------------------------------------------------------------------------------------------

    def winner(self) -> tuple[Any, Recipe]:
        """Return the best trial on validation, and the recipe with its values."""
        complete = self.all_trials("COMPLETE")
        if not complete:
            raise ValueError(f"Study {self.name!r} has no complete trial yet, and so no winner.")
        best = self.study.best_trial
        return best, with_values(self.recipe, best.params)

    def export(self, folder: Path) -> list[Path]:
        """Write all trials as a table and the winner as a recipe."""
        best, recipe = self.winner()
        written = [folder / "trials.csv", folder / "winner.toml"]
        keys = list(self.recipe.search)
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(["trial", "place", "state", "valid", *keys, "seconds", "reason", "run"])
        for trial in self.all_trials():
            spent = trial.duration.total_seconds() if trial.duration else ""
            more = [spent, trial.user_attrs.get("reason", ""), trial.user_attrs.get("run", "")]
            values = [trial.params.get(key, "") for key in keys]
            place, score = trial.user_attrs.get("place", ""), "" if trial.value is None else trial.value
            writer.writerow([trial.number, place, trial.state.name.lower(), score, *values, *more])
        write_atomically(folder / "trials.csv", text.getvalue().encode())
        said = (
            f"# trial {best.number} of study {self.name}: validation {best.value:.6g}, of {len(self.done())} trials\n"
        )
        write_atomically(folder / "winner.toml", f"{said}{recipe.to_toml()}".encode())
        return written


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def study_direction(recipe: Recipe) -> bool:
    """Return whether more is better, by the metric of the recipe's task."""
    return METRICS[METRIC_BY_TASK[recipe.task["name"]]].higher_is_better


def study_figure(study: Study, stem: Path) -> list[Path]:
    """Draw the validation score of all trials in their order and against each value drawn, as PNG and SVG."""
    plt = pyplot()
    trials = [trial for trial in study.done() if trial.value is not None]
    keys, best = list(study.recipe.search), study.winner()[0]
    chart, axes = plt.subplots(
        1, 1 + len(keys), figsize=(3.2 * (1 + len(keys)), 3.2), layout="constrained", sharey=True
    )
    for axis, key in zip(axes, [None, *keys]):
        for state, mark in (("COMPLETE", "o"), ("PRUNED", "x")):
            chosen = [trial for trial in trials if trial.state.name == state]
            places = [trial.number if key is None else trial.params[key] for trial in chosen]
            if chosen:
                axis.plot(places, [trial.value for trial in chosen], mark, color="0.4", label=state.lower())
        place = best.number if key is None else best.params[key]
        axis.plot(place, best.value, "o", color="tab:red", label=f"best, {best.value:.4g}")
        axis.set_xlabel(key or "trial")
        choice = study.recipe.search[key] if key else {}
        if isinstance(choice, dict) and choice.get("log"):
            axis.set_xscale("log")
    if study.study.direction.name == "MINIMIZE" and all(trial.value > 0 for trial in trials):
        axes[0].set_yscale("log")
    axes[0].set_ylabel("validation")
    axes[0].legend(frameon=False)
    chart.suptitle(f"{study.name}: {len(trials)} trials", fontsize=10)
    paths = [stem.with_suffix(".png"), stem.with_suffix(".svg")]
    for path in paths:
        save_figure(chart, path)
    plt.close(chart)
    return paths
