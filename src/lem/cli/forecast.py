"""`lem forecast`: forecast the series of a dated file, with a backtest, intervals and a picture."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from lem.cli.data_options import describer, given, names
from lem.cli.display import Display, table
from lem.cli.fit import add_estimator_options, estimator_given
from lem.cli.train import interruptible
from lem.readable import format_duration
from lem.timeseries.dated import GAPS
from lem.timeseries.dated_forecast import forecast_file
from lem.timeseries.schema import DUPLICATES, ON_MISSING

OWN = (
    "time",
    "target",
    "series",
    "past",
    "future",
    "static",
    "time_format",
    "gaps",
    "duplicates",
    "missing",
    "model",
    "start",
    "stride",
    "seed",
)


def add(commands: Any) -> None:
    """Add this topic's commands."""
    parser = commands.add_parser("forecast")
    parser.add_argument("data", type=Path, metavar="DATA", help="a CSV or Parquet file of dated rows, one step a row")
    lists: dict[str, Any] = {"metavar": "A,B,...", "type": names, "action": "extend"}

    def own(flag: str, **options: Any) -> None:
        parser.add_argument(flag, default=argparse.SUPPRESS, **options)

    own("--horizon", type=int, metavar="STEPS", help="how many steps to forecast")
    own("--time", metavar="COLUMN", help="the column of dates (default: the only one)")
    own("--target", **lists, help="what to forecast (default: the only other column)")
    own("--series", metavar="COLUMN", help="the column that names the series, if there are several")
    own("--past", **lists, help="columns known up to the last step, used as covariates")
    own("--future", type=Path, metavar="FILE", help="a table of covariates known in advance, for the steps ahead")
    own("--static", **lists, help="columns with one value per series")
    own("--time-format", metavar="FORMAT", help="how dates are written, such as %%d/%%m/%%Y %%H:%%M")
    own("--gaps", choices=GAPS, help="gaps between dates: refuse (default), count as missing, or interpolate")
    own("--duplicates", choices=DUPLICATES, help="repeated dates: refuse (default), or the value to keep")
    own("--missing", choices=ON_MISSING, help="missing values: refuse (default), or mark for the model")
    own("--model", type=Path, metavar="FILE", help="apply this model file instead of training")
    own("--start", type=float, metavar="PART", help="the backtest begins after this part of the series (default 0.8)")
    own("--stride", type=int, metavar="STEPS", help="between two forecasts of the backtest (default: the horizon)")
    own("--seed", type=int, help="the seed of weights and batches (default 0)")
    parser.add_argument("--no-backtest", action="store_true", help="do not score the forecasts")
    parser.add_argument("--no-plot", action="store_true", help="draw no picture")
    parser.add_argument("--json", action="store_true", help="print the scores as JSON")
    parser.add_argument(
        "--out", type=Path, default=Path("forecast.csv"), metavar="FILE",
        help="the .csv or .parquet file of the forecast (default forecast.csv); the model, a card and a picture are "
        "written next to it",
    )  # fmt: skip
    add_estimator_options(parser, "forecast", skip=OWN)
    parser.set_defaults(command=_forecast)


def _forecast(options: argparse.Namespace) -> int:
    display = Display("lem forecast")
    found = given(options, "horizon", *OWN)
    picked = {name: value for name, value in estimator_given(vars(options)).items() if name not in OWN}
    try:
        with interruptible() as interrupted:
            done = forecast_file(
                options.data,
                found.pop("horizon", None),
                **found,
                backtest=not options.no_backtest,
                out=options.out,
                picture=not options.no_plot,
                options=picked,
                understood=describer(options.data, display),
                report=display,
                should_stop=interrupted,
            )
    finally:
        display.end()
    if done.backtest is not None:
        print(json.dumps(done.backtest.plain(), indent=2) if options.json else "\n".join(done.backtest.lines()))
    elif "model" not in found:
        print(f"no backtest: {done.why_no_backtest}")
    table([("time", format_duration(done.seconds)), *((what, str(path)) for what, path in done.files.items())])
    if done.stopped:
        print("Stopped early; the best model so far was kept. Run the same command again for the full training.",
              file=sys.stderr)  # fmt: skip
    return 130 if done.stopped else 0
