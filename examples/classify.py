"""Classify a UEA set: python examples/classify.py TRAIN.ts TEST.ts

Any .ts or .arff file of the UCR and UEA archives will do; unequal lengths and several channels need no extra step.
"""

import sys

from lem.timeseries import LEMClassifier
from lem.timeseries.files import read


def main(train: str, test: str, epochs: int = 150) -> float:
    X, y, _ = read(train)
    X_test, y_test, _ = read(test)
    model = LEMClassifier(epochs=epochs, random_state=0).fit(X, y)
    accuracy = model.score(X_test, y_test)
    print(f"{len(X)} series, {len(model.classes_)} classes, dt {model.dt_:.2g}: test accuracy {accuracy:.3f}")
    return accuracy


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
