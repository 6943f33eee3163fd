"""Every recipe's model can be built, has the size the paper prints, and no row of the paper's tables lacks a recipe."""

import pytest

from lem.experiments.first_format import RENAMED
from lem.experiments.recipe import load_recipe, recipe_names
from lem.nn.cells import CELLS
from lem.nn.model import SequenceModel

# What the tasks give a model: inputs, outputs and how it is read; the data is not needed to build one.
SIZES = {
    "adding": (2, 1, {}),
    "smnist": (1, 10, {}),
    "psmnist": (1, 10, {}),
    "ncifar10": (96, 10, {}),
    "eigenworms": (6, 5, {}),
    "heart_rate": (2, 1, {}),
    "fitzhugh_nagumo": (1, 1, {"every_step": True}),
    "google12": (80, 12, {}),
    "ptb_char": (50, 50, {"every_step": True, "symbols": True}),
    "ptb_word": (10000, 10000, {"every_step": True, "symbols": True}),
    "long_pulse": (2, 3, {}),
    "physionet2012": (83, 2, {}),
}
IMAGES = "lem gru lstm chrono-lstm antisymmetric lipschitz exprnn cornn"
ROWS = {
    "adding": "lem lstm chrono-lstm cornn dtriv fastgrnn",
    "smnist": IMAGES,
    "psmnist": IMAGES,
    "ncifar10": IMAGES,
    "eigenworms": "lem nrde exprnn indrnn lstm bilstm-conv chrono-lstm cornn unicornn lem-dt1 lem-chrono tbptt-lstm "
    "subsampled-lstm dt-lstm-v1 dt-lstm-v2",
    "heart_rate": "lem lstm chrono-lstm exprnn indrnn cornn unicornn",
    "fitzhugh_nagumo": "lem lstm exprnn lipschitz fastgrnn cornn lem-single-scale",
    "google12": "lem rnn antisymmetric lstm gru fastgrnn exprnn cornn lem-clipped",
    "ptb_char": "lem antisymmetric lipschitz exprnn cornn nnrnn lstm gru",
    "ptb_word": "lem lipschitz fastrnn lstm skiplstm tarnn",
}
OTHER_SIZES = {
    "ncifar10/antisymmetric": "the printed size is that of three inputs a step",
    "fitzhugh_nagumo/lem-single-scale": "the printed size counts the unused gates",
    "ptb_char/gru": "the printed size is that of a smaller embedding",
}


@pytest.mark.parametrize("task", sorted(ROWS))
def test_every_row_of_the_papers_tables_has_a_recipe(task):
    assert {f"{task}/{model}" for model in ROWS[task].split()} <= set(recipe_names())


def test_the_recipe_of_two_hundred_steps_is_for_every_cell():
    recipe = load_recipe("adding/short")
    assert recipe.sweep["model.cell"] == list(CELLS)
    assert recipe.model == {"cell": "lem", "hidden_size": 128, "two_biases": True, "dt": 0.0707}
    assert "two_biases" not in load_recipe("adding/short", {"model.cell": "lstm"}).model
    cornn = load_recipe("adding/short", {"model.cell": "cornn", "model.gamma": 2.0})
    assert (cornn.model["gamma"], cornn.model["epsilon"], cornn.train["learning_rate"]) == (2.0, 15.0, 0.02)


def test_a_renamed_recipe_is_refused_with_its_new_name():
    for old, (new, cell) in RENAMED.items():
        with pytest.raises(ValueError, match=f"Recipe '{old}' is now '{new}' with model.cell = '{cell}'"):
            load_recipe(old)


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ("cells = 3", r"`cells` of recipe .* must be sections \[cells.NAME\]; got 3"),
        ("[cells.lemm]\nmodel.dt = 1.0", r"must name a model; got 'lemm'. Did you mean 'lem'\?"),
        ("[cells.lem]\ntask.length = 3", r"\[cells.lem\] of recipe .* must set model.KEY and train.KEY"),
        ("[cells.lem]\ndt = 3", r"\[cells.lem\] of recipe .* must set model.KEY and train.KEY"),
        ("[cells.lem]\nmodel = 3", r"\[cells.lem\] of recipe .* must set model.KEY and train.KEY"),
        ("[cells.lem]\nmodel.dtt = 3.0", r"A key in \[model\] .* got 'dtt'. Did you mean 'dt'\?"),
    ],
)
def test_mistakes_in_the_sections_of_cells_are_named(cells, message, tmp_path):
    base = '[task]\nname = "adding"\n[model]\ncell = "lem"\nhidden_size = 3\n'
    train = "[train]\nbatch_size = 2\nepochs = 1\nlearning_rate = 0.1\n"
    first, rest = (f"{cells}\n", "") if cells.startswith("cells") else ("", cells)
    (tmp_path / "mine.toml").write_text(f"{first}{base}{train}{rest}\n")
    with pytest.raises(ValueError, match=message):
        load_recipe(str(tmp_path / "mine.toml"))


SHORT = [("adding/short", {"model.cell": cell}) for cell in CELLS]


@pytest.mark.parametrize(("name", "overrides"), [*((name, {}) for name in recipe_names()), *SHORT])
def test_the_model_can_be_built_and_has_the_printed_size(name, overrides):
    recipe = load_recipe(name, overrides)
    options = {key: tuple(value) if isinstance(value, list) else value for key, value in recipe.model.items()}
    inputs, outputs, read = SIZES[recipe.task["name"]]
    model = SequenceModel(
        options.pop("cell"), inputs, options.pop("hidden_size"), outputs, device="meta", **read, **options
    )
    printed = recipe.paper.get("parameters")
    if printed is not None and name not in OTHER_SIZES:
        counts = model.count_parameters()
        which = "all" if "conv_channels" in recipe.model else "cell_and_readout"
        nearest = min((counts["cell"], counts[which]), key=lambda count: abs(count - printed))
        # The tables round (to thousands: 1,376 is printed as 1k), and mix one bias with two and with none.
        assert abs(nearest - printed) <= max(0.08 * printed, 400 if printed == 1000 else 0)
