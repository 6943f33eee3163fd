"""`lem predict` and `lem export`: predict with a model file on a file of series, or write it for other machines."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from lem.cli.data_options import add_data, reading
from lem.timeseries import formats
from lem.timeseries.answering import evaluate_file, predict_file
from lem.timeseries.predictor import Predictor


def add(commands: Any) -> None:
    """Add this topic's commands."""
    predict = commands.add_parser("predict")
    predict.add_argument("model", type=Path, metavar="MODEL", help="a model file of `lem fit`")
    add_data(predict)
    predict.add_argument("--out", type=Path, metavar="FILE", help="write .csv or .parquet (default: CSV to stdout)")
    predict.add_argument(
        "--spreadsheet", action="store_true", help="quote labels and names that a spreadsheet would take for formulas"
    )
    predict.set_defaults(command=_predict)

    export = commands.add_parser("export")
    export.add_argument("model", type=Path, metavar="MODEL", help="a model file of `lem fit`")
    export.add_argument("--to", choices=("onnx", "torch", "numpy"), required=True, help="for onnxruntime, torch, NumPy")
    export.add_argument("--kernel", action="store_true", help="with --to torch: run LEM's kernel, if lem is installed")
    export.add_argument("--out", type=Path, metavar="FOLDER", help="the folder to write (default: MODEL-TO)")
    export.set_defaults(command=_export)


def evaluate(options: argparse.Namespace) -> int:
    """Score a model file on a file of series (`lem evaluate MODEL DATA`)."""
    if options.data is None:
        raise ValueError("lem evaluate MODEL DATA needs a file of series after the model file.")
    scores = evaluate_file(options.run, options.data, reading(options), say)
    print(json.dumps(scores.plain(), indent=2) if options.json else "\n".join(scores.lines()))
    return 0


def say(note: str) -> None:
    """Print a note about the data to standard error."""
    print(f"lem: {note}", file=sys.stderr)


def _predict(options: argparse.Namespace) -> int:
    if options.out is not None and options.out.suffix.lower() not in (".csv", ".parquet"):
        raise ValueError(f"--out of lem predict must end in .csv or .parquet; got {options.out.name}.")
    columns = predict_file(options.model, options.data, reading(options), say)
    if options.out is not None and options.out.suffix.lower() == ".parquet":
        print(formats.write(options.out, columns))
        return 0
    plain = {name: [_plain(entry) for entry in column] for name, column in columns.items()}
    if options.out is None:
        print(formats.as_csv(plain, options.spreadsheet), end="")
    else:
        print(formats.write(options.out, plain, options.spreadsheet))
    return 0


def _plain(entry: Any) -> Any:
    """Write a float with six significant digits and without an exponent."""
    if not isinstance(entry, float):
        return entry
    return np.format_float_positional(float(f"{entry:.6g}"), trim="-") if np.isfinite(entry) else str(entry)


def _export(options: argparse.Namespace) -> int:
    from lem.timeseries.export import export
    from lem.timeseries.selftest import allowance

    predictor = Predictor.load(options.model)
    folder = options.out or options.model.with_name(f"{options.model.stem}-{options.to}")
    export(predictor, options.to, folder, portable=not options.kernel)
    print(f"{folder}: self-test passed (to {allowance(folder):.2g})")
    return 0
