"""Classification: a label for a series."""

from typing import Any, Self

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d
from torch import Tensor
from torch.nn import functional

from lem.data import ArraySplit
from lem.estimators.base import SeriesEstimator
from lem.metrics import METRICS, Loss, Metric
from lem.predictor import Predictor
from lem.series import Series


class _Latest(Metric):
    """A metric by which, among equals, the later epoch wins.

    The accuracy on a few held-out series takes few values, and of two epochs that look the same the one with the
    smaller learning rate generalises better.
    """

    def better(self, new: float, old: float | None) -> bool:
        """Return whether `new` is as good as `old`, up to rounding."""
        return old is None or new >= old - 1e-6


class LEMClassifier(ClassifierMixin, SeriesEstimator):
    """Tell the class of each time series: y are labels of any kind.

    Args:
        class_weight: None, "balanced", or a mapping of labels to the weight of their loss.

    The other arguments and attributes are those all estimators here share: see `LEMRegressor`. `classes_` are the
    labels in the order of `predict_proba`.
    """

    _kind = "classifier"

    def __init__(
        self,
        hidden_size: int = 64,
        *,
        cell: str = "lem",
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
        class_weight: Any = None,
        missing: str = "error",
        random_state: Any = None,
        device: str = "cpu",
        verbose: int = 0,
    ) -> None:
        super().__init__(
            hidden_size,
            cell=cell,
            num_layers=num_layers,
            bidirectional=bidirectional,
            dt=dt,
            cell_options=cell_options,
            dropout=dropout,
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            validation_fraction=validation_fraction,
            patience=patience,
            missing=missing,
            random_state=random_state,
            device=device,
            verbose=verbose,
        )
        self.class_weight = class_weight

    def partial_fit(self, X: Any, y: Any = None, classes: Any = None) -> Self:
        """Train for one more epoch on further series; `classes` names all labels where the first y does not."""
        if not hasattr(self, "predictor_"):
            self._named = None if classes is None else np.unique(classes)
        return super().partial_fit(X, y)

    def fit(self, X: Any, y: Any = None) -> Self:
        """Train on series X and their labels y."""
        self._named = None
        return super().fit(X, y)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the class probabilities of each series, in the order of `classes_`."""
        check_is_fitted(self)
        return self.predictor_.answers(self._series(X, first=False))

    def _targets(self, y: Any, first: bool) -> np.ndarray:
        if y is None:
            raise ValueError(
                f"`y` of {self._name} must be given: it requires y to be passed, but the target y is None."
            )
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        if first:
            self.classes_ = np.unique(y) if self._named is None else self._named
            if len(self.classes_) < 2:
                raise ValueError(
                    f"`y` of {self._name} must have at least two classes; got 1 class: {self.classes_[0]}."
                )
        targets = np.searchsorted(self.classes_, y).clip(max=len(self.classes_) - 1)
        unseen = np.flatnonzero(self.classes_[targets] != y)
        if len(unseen):
            raise ValueError(
                f"`y` of {self._name} must hold the classes {', '.join(map(str, self.classes_))}; "
                f"got {y[unseen[0]].item()!r} in sample {unseen[0]}."
            )
        return targets

    def _new_predictor(self, series: Series, targets: np.ndarray, architecture: dict[str, Any]) -> Predictor:
        predictor = Predictor(
            "classifier",
            self.n_channels_in_,
            len(self.classes_),
            architecture,
            labels=self.classes_,
            missing=self.missing,
        )
        predictor.set_units(series)
        return predictor

    def _split(self, series: Series, targets: np.ndarray) -> ArraySplit:
        inputs, lengths = self._standard(series)
        return ArraySplit(inputs, torch.from_numpy(targets), lengths)

    def _loss(self, targets: np.ndarray) -> Loss:
        weight = self._class_weights(targets).to(self.device)
        return lambda prediction, target: functional.cross_entropy(prediction, target, weight, reduction="none")

    def _metric(self, targets: np.ndarray) -> Metric:
        weight, correct = self._class_weights(targets).to(self.device), METRICS["accuracy"].each
        return _Latest(lambda p, target: weight[target] * correct(p, target), float, higher_is_better=True)

    def _class_weights(self, targets: np.ndarray) -> Tensor:
        each = compute_class_weight(self.class_weight, classes=self.classes_, y=self.classes_[targets])
        # Their mean over the samples is 1, so that the learning rate means the same with and without weights.
        return torch.from_numpy(each / each[targets].mean()).to(torch.float32)
