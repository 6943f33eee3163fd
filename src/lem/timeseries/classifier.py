"""Classification: a label for a series."""

import warnings
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted, column_or_1d
from torch import Tensor
from torch.nn import functional

from lem.timeseries.predictor import Predictor
from lem.timeseries.series import Series, as_labels
from lem.timeseries.supervised import SupervisedEstimator
from lem.training.data import ArraySplit
from lem.training.metrics import METRICS, Loss, Metric


class _Latest(Metric):
    """A metric by which, among equals, the later epoch wins.

    The accuracy on a few held-out series takes few values, and of two epochs that look the same the one with the
    smaller learning rate generalises better.
    """

    def better(self, new: float, old: float | None) -> bool:
        """Return whether `new` is as good as `old`, up to rounding."""
        return old is None or new >= old - 1e-6


class LEMClassifier(ClassifierMixin, SupervisedEstimator):
    """Classify time series. `y` may hold any labels.

    Probabilities of frozen features are calibrated: scores enter the softmax with a factor that minimises the log-loss
    of leave-one-out predictions. With y of shape (n, labels), holding 0 and 1, a series can have several labels at
    once; `predict` and `predict_proba` then have this shape too.

    Args:
        class_weight: None, "balanced", or a mapping of labels to the weight of their loss.

    The other arguments and attributes are those of `SupervisedEstimator` and `SeriesEstimator`. `classes_` are the
    labels in the order of `predict_proba`.

    Examples:
        >>> import numpy as np
        >>> from lem import LEMClassifier
        >>> time, random = np.arange(50), np.random.default_rng(0)
        >>> y = np.repeat(["fast", "slow"], 15)
        >>> X = np.sin(np.where(y == "fast", 0.9, 0.3)[:, None] * time) + random.normal(0, 0.3, (30, 50))
        >>> model = LEMClassifier(effort="quick", random_state=0).fit(X, y)
        >>> model.predict(np.sin(0.9 * time)[None])
        array(['fast'], dtype='<U4')
    """

    _kind = "classifier"
    _several: bool
    classes_: np.ndarray
    class_weight: Any
    _score_name = "held-out accuracy"

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
        class_weight: Any = None,
        missing: str = "error",
        random_state: Any = None,
        device: str = "cpu",
        verbose: int = 0,
    ) -> None:
        self._keep(locals())

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = self._network == "features"
        return tags

    def partial_fit(self, X: Any, y: Any = None, classes: Any = None, *, times: Any = None) -> Self:
        """Train for one more epoch on further series; `classes` names all labels if the first y does not."""
        if not hasattr(self, "predictor_"):
            self._named = None if classes is None else np.unique(as_labels(classes))
        return super().partial_fit(X, y, times=times)

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
        """Fit series X and their labels y; see `SupervisedEstimator.fit`."""
        self._named = None
        return super().fit(X, y, sample_weight, eval_set, times=times, time_unit=time_unit)

    def predict_proba(self, X: Any, *, times: Any = None) -> np.ndarray:
        """Return the class probabilities of each series, in the order of `classes_`; `times` as in `fit`."""
        check_is_fitted(self)
        return self.predictor_.answers(self._timed(X, times))

    def score(self, X: Any, y: Any, sample_weight: Any = None, *, times: Any = None) -> float:
        """Return the accuracy; `times` as in `fit`."""
        return float(accuracy_score(y, self.predict(X, times=times), sample_weight=sample_weight))

    def _targets(self, y: Any, first: bool) -> np.ndarray:
        if y is None:
            raise ValueError(
                f"`y` of {self._name} must be given: it requires y to be passed, but the target y is None."
            )
        if isinstance(y, list | tuple) or getattr(getattr(y, "dtype", None), "kind", "") == "O":
            kinds = {isinstance(label, str) for label in y if np.ndim(label) == 0}
            if len(kinds) > 1:
                raise ValueError(f"`y` of {self._name} must hold texts or numbers, not both; convert it with str.")
        labels = as_labels(y)
        if labels.ndim == 2 and labels.shape[1] > 1:
            return self._several_labels(labels, first)
        if not first and self._several:
            raise ValueError(
                f"`y` of {self._name} must be (n, {len(self.classes_)}), as in fit; got one label a series."
            )
        self._several = False
        y = column_or_1d(labels, warn=True)
        check_classification_targets(y)
        if first:
            self.classes_ = np.unique(y) if self._named is None else self._named
            if len(self.classes_) < 2:
                raise ValueError(
                    f"`y` of {self._name} must have at least two classes; got 1 class: {self.classes_[0]}."
                )
            single = self.classes_[np.unique(y, return_counts=True)[1] == 1] if self._named is None else []
            if len(single):
                warnings.warn(
                    f"Class {single[0]!s} has only one series in `y` of {self._name}: how well it is recognised "
                    "cannot be estimated.",
                    stacklevel=4,
                )
        targets = np.searchsorted(self.classes_, y).clip(max=len(self.classes_) - 1)
        unseen = np.flatnonzero(self.classes_[targets] != y)
        if len(unseen):
            raise ValueError(
                f"`y` of {self._name} must hold the classes {', '.join(map(str, self.classes_))}; "
                f"got {str(y[unseen[0]])!r} in sample {unseen[0]}."
            )
        return targets

    def _several_labels(self, y: np.ndarray, first: bool) -> np.ndarray:
        """Check y of shape (n, labels)."""
        if type_of_target(y) != "multilabel-indicator":
            raise ValueError(
                f"`y` of {self._name} with {y.shape[1]} columns must hold 0 and 1 (several labels at once). For "
                f"several targets with more classes use sklearn.multioutput.MultiOutputClassifier({self._name}())."
            )
        if self.class_weight is not None:
            raise ValueError(f"`class_weight` of {self._name} must be None for several labels at once.")
        if first:
            self._several, self.classes_ = True, np.arange(y.shape[1])
        elif not self._several or y.shape[1] != len(self.classes_):
            raise ValueError(
                f"`y` of {self._name} must have {len(self.classes_) if self._several else 1} columns, as in fit; got "
                f"{y.shape[1]}."
            )
        return y.astype(np.int64)

    def _new_predictor(self, series: Series, targets: np.ndarray, architecture: dict[str, Any]) -> Predictor:
        if self._several and architecture.get("network") != "frozen":
            raise ValueError(f"{self._name} with network='lem' learns one label a series; use network='features'.")
        predictor = Predictor(
            "classifier",
            self.n_channels_in_,
            len(self.classes_),
            architecture,
            labels=self.classes_,
            missing=self.missing,
            flat=self._several,
        )
        predictor.set_units(series)
        return predictor

    def _split(self, series: Series, targets: np.ndarray) -> ArraySplit:
        inputs, lengths, elapsed = self._standard(series)
        return ArraySplit(inputs, torch.from_numpy(targets), lengths, elapsed=elapsed)

    def _loss(self, targets: np.ndarray) -> Loss:
        weight = self._class_weights(targets).to(self._place)
        return lambda prediction, target: functional.cross_entropy(prediction, target, weight, reduction="none")

    def _metric(self, targets: np.ndarray) -> Metric:
        weight, correct = self._class_weights(targets).to(self._place), METRICS["accuracy"].each
        return _Latest(lambda p, target: weight[target] * correct(p, target), float, higher_is_better=True)

    def _eval_score(self, series: Series, targets: np.ndarray) -> float:
        """Return the accuracy; of several labels, how often all are right."""
        answers = self.predictor_.answers(series)
        right = ((answers > 0.5) == targets).all(1) if self._several else answers.argmax(1) == targets
        return float(right.mean())

    def _balance(self, targets: np.ndarray) -> np.ndarray | None:
        return None if self.class_weight is None else self._class_weights(targets).double().numpy()[targets]

    def _class_weights(self, targets: np.ndarray) -> Tensor:
        each = compute_class_weight(self.class_weight, classes=self.classes_, y=self.classes_[targets])
        # Their mean over the samples is 1, so that the learning rate means the same with and without weights.
        return torch.from_numpy(each / each[targets].mean()).to(torch.float32)
