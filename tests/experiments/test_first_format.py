"""Run folders of 0.1.0: their sentences become fields, and the fields the same sentences again."""

from pathlib import Path

import pytest

from lem.experiments.first_format import folder_seed, recipe_name, recipe_tables, result
from lem.experiments.report import data_sentences
from lem.experiments.run_folder import RunFolder

KEPT = Path(__file__).parents[1] / "fixtures" / "0.1.0" / "kept" / "adding" / "lem-short" / "3-597b37c6"
NOTES = {
    "a subset: 3300 / 550 / 960 clips of the published 84843 / 9981 / 11005": {
        "sizes": [3300, 550, 960],
        "subset_of": [84843, 9981, 11005],
    },
    "silence cut from the noise recordings: 319 / 40 / 0 clips": {"cut_silence": [319, 40, 0]},
    "data: rebuilt from the recordings, 7949 windows": {"source": "recordings", "rebuilt": True, "samples": 7949},
    "data: the archive's BIDMC32HR, 20 windows": {"source": "archive", "rebuilt": False, "samples": 20},
    "split: recording; no recording is in two splits": {"split": "recording", "shared_recordings": False},
    "split: random; training and test share recordings": {"split": "random", "shared_recordings": True},
    "split: deduplicated, fold 2 of 5": {"split": "deduplicated", "fold": 1, "folds": 5},
    "split: paper": {"split": "paper"},
    "targets are standardised: beats per minute = 88.4932 + 11.7238 x answer": {
        "target_mean": 88.4932,
        "target_scale": 11.7238,
    },
    "20 series, 19 different": {"samples": 20, "distinct": 19},
    "1 of 3 test series are also in training or validation": {"test_seen": 1, "test_samples": 3},
    "checksum of the source files 0123456789abcdef (none is published)": {"checksum": "0123456789abcdef"},
    "one noise block is shared by all samples": {"noise": "shared"},
    "fresh noise for every sample": {"noise": "fresh"},
}


@pytest.mark.parametrize("note", NOTES)
def test_a_sentence_of_the_first_version_becomes_fields_and_comes_back_the_same(note):
    read = result({"test": 1.0, "notes": [note, "something else"]})
    assert read == {"test": 1.0, "data": NOTES[note], "notes": ["something else"]}
    assert data_sentences(read["data"]) == [note]


def test_a_sentence_that_differs_by_a_word_stays_a_note():
    for note in NOTES:
        changed = f"{note} or so"
        assert result({"notes": [changed]}) == {"data": {}, "notes": [changed]}


def test_name_seed_and_the_papers_score_are_found():
    assert recipe_name("# adding/lem, resolved\n\n[task]\n") == "adding/lem"
    assert recipe_name("# adding/lstm-short, resolved\n\n[task]\n") == "adding/short"
    assert folder_seed(Path("runs/adding/lem/17-1a2b3c4d")) == 17
    with pytest.raises(ValueError, match="does not start with a seed"):
        folder_seed(Path("runs/adding/lem/seventeen"))
    assert recipe_tables({"paper": {"figure": 2.0, "units": 3}}) == {"paper": {"score": 2.0, "units": 3}}
    assert recipe_tables({"paper": 3}) == {"paper": 3}


def test_the_kept_run_has_its_name_and_seed():
    folder = RunFolder(KEPT)
    assert (folder.recipe().name, folder.seed) == ("adding/short", 3)
