"""What classifier and regressor share: the choice of network, weights of samples, an evaluation set, explanations."""

from typing import Any, Self

import numpy as np
import torch
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_consistent_length, check_is_fitted

from lem.nn.cells import CELLS
from lem.timeseries.estimator import Memory, SeriesEstimator
from lem.timeseries.explain import Explanation, occlusion
from lem.timeseries.frozen import Frozen, plan
from lem.timeseries.gaps import with_times
from lem.timeseries.readout import EFFORTS, fit_readout
from lem.timeseries.series import Series
from lem.wording import check_choice

NETWORKS = ("auto", "features", "lem")
TRAINED_ONLY = (
    "hidden_size",
    "num_layers",
    "bidirectional",
    "dt",
    "cell_options",
    "dropout",
    "epochs",
    "batch_size",
    "learning_rate",
    "weight_decay",
    "validation_fraction",
    "patience",
)
"""The parameters that a network of frozen features does not have."""


class SupervisedEstimator(SeriesEstimator):
    """An estimator of one answer per series, by frozen features or by a trained network.

    Args:
        effort: of frozen features: "quick" (3,000 features), "default" (10,000) or "best" (30,000, and a choice
            between kinds of features by the leave-one-out error).
        network: "features" (frozen features and a ridge regression, see `LEMFeatures`), "lem" (one recurrent network
            that is trained from end to end) or "auto", which takes "features" unless a parameter is set that only
            training has, such as `epochs`.
        cell: the recurrent model, a name in `lem.CELLS`.
        causal: compute features that do not look ahead, so that `stream` works.
    """

    effort: str
    network: str
    causal: bool

    def __init__(
        self,
        hidden_size: int = 64,
        *,
        effort: str = "default",
        network: str = "auto",
        cell: str = "lem",
        causal: bool = False,
        num_layers: int = 1,
        bidirectional: bool = False,
        dt: float | str = "auto",
        cell_options: dict[str, Any] | None = None,
        dropout: float = 0.0,
        epochs: int = 150,
        batch_size: int | str = "auto",
        learning_rate: float = 5e-3,
        weight_decay: float = 0.0,
        validation_fraction: float = 0.2,
        patience: int | None = 100,
        missing: str = "error",
        random_state: Any = None,
        device: str = "cpu",
        verbose: int = 0,
    ) -> None:
        self._keep(locals())

    # --- fitting ----------------------------------------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        eval_set: Any = None,
        *,
        times: Any = None,
        time_unit: float | None = None,
    ) -> Self:
        """Fit series X and their targets y.

        Args:
            X: the series.
            y: their labels or numbers.
            sample_weight: the weight of each series.
            eval_set: a pair (X, y), or (X, y, times), on which to score the model; a trained network also chooses its
                epoch on it, instead of holding out a part of X.
            times: for series that are not sampled regularly, the times of their observations: one array per series.
                The network is trained then: frozen features need equal steps.
            time_unit: the time that counts as one step, in seconds for dates; the median gap by default.
        """
        if times is not None and self.network == "features":
            raise ValueError(f"`times` of {self._name} must be None with network='features', which needs equal steps.")
        series, targets = self._read(X, y, True, times, time_unit)
        held = self._eval_set(eval_set, times is not None)
        weights = None
        if sample_weight is not None:
            weights = _check_sample_weight(sample_weight, series.lengths, dtype=np.float64, ensure_non_negative=True)
        if self._network == "lem" or times is not None:
            self._fit_trained(series, targets, weights, held)
        else:
            self._fit_features(series, targets, weights)
        if held is not None:
            self.eval_score_ = self._eval_score(*held)
            if self.verbose:
                self._say(f"evaluation set: {self.eval_score_:.4g}")
        return self

    def partial_fit(self, X: Any, y: Any = None, *, times: Any = None) -> Self:
        """Train for one more epoch on further series; needs network="lem", or "auto", which means it here.

        After a `fit` of frozen features, training starts again.
        """
        if self.network == "features":
            raise ValueError(
                f"partial_fit of {self._name} needs network='lem': frozen features are fitted in one step, by `fit`."
            )
        if hasattr(self, "predictor_") and isinstance(self.predictor_.model, Frozen):
            del self.predictor_
        return super().partial_fit(X, y, times=times)

    @property
    def _network(self) -> str:
        """The network that `fit` uses: "features" or "lem"."""
        if self.network != "auto":
            return self.network
        return "lem" if self._changed(TRAINED_ONLY) else "features"

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_choice(self._name, "network", self.network, NETWORKS)
        check_choice(self._name, "effort", self.effort, EFFORTS)
        if self.network == "features" and (given := self._changed(TRAINED_ONLY)):
            raise ValueError(f"`{given[0]}` of {self._name} applies to network='lem' only; network is 'features'.")
        if self._network == "features":
            check_choice(self._name, "cell", self.cell, sorted(CELLS))

    def _balance(self, targets: np.ndarray) -> np.ndarray | None:
        """Return the weight of each series by its class, or None."""
        return None

    def _fit_features(self, series: Series, targets: np.ndarray, weights: np.ndarray | None) -> None:
        seed = check_random_state(self.random_state).randint(2**31 - 1)
        random = np.random.default_rng(seed)
        balance = self._balance(targets)
        if balance is not None:
            weights = balance if weights is None else weights * balance
        architecture = {
            "network": "frozen",
            **plan(
                series.values.shape[2],
                float(np.median(series.lengths)),
                n_features=EFFORTS[self.effort],
                cell=self.cell,
                causal=bool(self.causal),
                masked=self.missing == "mask",
                random=random,
            ),
        }
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.predictor_ = self._new_predictor(series, targets, architecture)
            found = fit_readout(
                self.predictor_,
                series,
                targets,
                weights=weights,
                compare=self.effort == "best",
                random=random,
                verbose=self.verbose,
                name=self._name,
                listener=self._listener,
                should_stop=self._should_stop,
            )
        self.history_, self.best_epoch_, self.dt_, self.stopped_ = [], 0, None, False
        self._memory = Memory()
        self.left_out_score_ = found["left_out"]
        self.predictor_.notes = {
            **self._data_notes(series),
            **found,
            "metric": "accuracy" if self._kind == "classifier" else "squared error",
            "parameters": self.predictor_.model.count_parameters()["cell_and_readout"],
        }

    # --- evaluation set ---------------------------------------------------------------------------------------------

    def _eval_set(self, eval_set: Any, timed: bool) -> tuple[Series, np.ndarray] | None:
        if eval_set is None:
            return None
        if isinstance(eval_set, list) and len(eval_set) == 1:
            eval_set = eval_set[0]
        if not isinstance(eval_set, tuple | list) or len(eval_set) != 2 + timed:
            must = "(X, y, times), since fit has times" if timed else "a pair (X, y)"
            raise ValueError(f"`eval_set` of {self._name} must be {must}.")
        series = self._series(eval_set[0], first=False)
        if timed:
            series = with_times(series, eval_set[2], self._name, self._clock)[0]
        check_consistent_length(series.lengths, eval_set[1])
        return series, self._targets(eval_set[1], first=False)

    def _eval_score(self, series: Series, targets: np.ndarray) -> float:
        raise NotImplementedError

    # --- what mattered ----------------------------------------------------------------------------------------------

    def explain(self, X: Any, *, windows: int = 20, times: Any = None) -> Explanation:
        """Tell which parts of each series mattered for the answer, by occlusion.

        Each of `windows` parts of each channel is replaced by the channel's mean over the training series; what counts
        is how far the answer moves: the loss of probability of the predicted class, or the change of the prediction.
        `plot` of the result draws it.
        """
        check_is_fitted(self)
        return occlusion(self.predictor_, self._timed(X, times), windows)
