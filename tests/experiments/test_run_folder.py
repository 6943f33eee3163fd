"""A run survives: kills, damaged checkpoints, a full disk, a read-only folder; and what must be refused is."""

import json
import multiprocessing
import os
import random
import subprocess
import time

import pytest
import torch

from lem.environment import environment
from lem.experiments.runner import RunFolder, evaluate_run, resume, run
from lem.training.checkpoint import load_tree, save_tree
from tests.runs import assert_same_run, tiny

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["lem.experiments.runner", "torch._dynamo", "tests.runs"])


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    """The kernel of a forked child has one thread, and two threads add a gradient in another order: the last bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run that writes a checkpoint after every update, and how long it took."""
    began = time.monotonic()
    folder, _ = run(tiny(train__checkpoint_minutes=0.0), 3, tmp_path_factory.mktemp("whole"))
    return folder, time.monotonic() - began


def stopped_after(updates, runs):
    calls = []
    recipe = tiny(train__checkpoint_minutes=0.0)
    folder, _ = run(recipe, 3, runs, should_stop=lambda: calls.append(0) or len(calls) == updates)
    assert not folder.finished
    return folder


def _train_in_child(runs):
    torch.set_num_threads(1)
    run(tiny(train__checkpoint_minutes=0.0), 3, runs)


def killed_at_random_moments(whole, runs, moments, seed):
    """Kill a run so many times at random moments, continuing it each time; where it finishes, begin another."""
    expected, seconds = whole
    chance, number, kills = random.Random(seed), 0, 0
    while kills < moments:
        process = CONTEXT.Process(target=_train_in_child, args=(runs / str(number),))
        process.start()
        process.join(0.02 + chance.random() * seconds)
        if process.is_alive():
            process.kill()
            kills += 1
        process.join()
        path = runs / str(number) / "adding" / "short" / expected.path.name
        if kills % 2 == 0 or (path / "result.json").exists() or kills == moments:  # some are killed twice over
            folder, _ = run(tiny(train__checkpoint_minutes=0.0), 3, runs / str(number))
            assert_same_run(folder, expected)
            assert folder.notes() == []
            number += 1


def test_a_run_killed_at_any_moment_continues_to_the_same_numbers(whole, tmp_path):
    killed_at_random_moments(whole, tmp_path, moments=3, seed=1)


@pytest.mark.slow
def test_a_run_killed_at_twenty_moments_continues_to_the_same_numbers(whole, tmp_path):
    killed_at_random_moments(whole, tmp_path, moments=20, seed=2)


@pytest.mark.parametrize("place", [0, 9, 0.5, -1])
def test_a_truncated_checkpoint_is_named_and_the_one_before_is_used(place, whole, tmp_path):
    truncated(place, whole, tmp_path)


@pytest.mark.slow
def test_a_checkpoint_truncated_at_twenty_places(whole, tmp_path):
    chance = random.Random(3)
    for number in range(20):
        truncated(chance.random(), whole, tmp_path / str(number))


def truncated(place, whole, runs):
    last = stopped_after(7, runs).path / "last.ckpt"
    content = last.read_bytes()
    last.write_bytes(content[: int(place * len(content)) if isinstance(place, float) else place])
    with pytest.warns(
        UserWarning, match=r"last\.ckpt is not a complete checkpoint: .*the checkpoint before it is used"
    ):
        folder, _ = run(tiny(train__checkpoint_minutes=0.0), 3, runs)
    assert_same_run(folder, whole[0])
    assert "last.ckpt is not a complete checkpoint" in folder.result()["notes"][0]


def test_a_flipped_bit_in_a_weight_is_noticed_and_the_checkpoint_before_is_used(whole, tmp_path):
    last = stopped_after(7, tmp_path).path / "last.ckpt"
    content = bytearray(last.read_bytes())
    content[-3] ^= 1
    last.write_bytes(bytes(content))
    with pytest.warns(UserWarning, match=r"does not match its checksum.*the checkpoint before it is used"):
        folder, _ = run(tiny(train__checkpoint_minutes=0.0), 3, tmp_path)
    assert_same_run(folder, whole[0])


def test_damaged_best_weights_are_refused(tmp_path):
    folder, _ = run(tiny(), 3, tmp_path)
    best = folder.path / "best.safetensors"
    content = bytearray(best.read_bytes())
    content[-3] ^= 1
    best.write_bytes(bytes(content))
    with pytest.raises(ValueError, match="does not match its checksum"):
        evaluate_run(folder)


def test_with_both_checkpoints_damaged_the_run_starts_again_and_says_so(whole, tmp_path):
    folder = stopped_after(7, tmp_path)
    for name in ("last.ckpt", "previous.ckpt"):
        (folder.path / name).write_bytes(b"nothing")
    with pytest.warns(UserWarning, match="is not a complete checkpoint|starts from its beginning") as warned:
        folder, _ = run(tiny(train__checkpoint_minutes=0.0), 3, tmp_path)
    assert [str(w.message).endswith("starts from its beginning.") for w in warned] == [False, False, True]
    assert_same_run(folder, whole[0])


def test_a_torn_record_is_left_out(tmp_path):
    folder = stopped_after(7, tmp_path)
    with open(folder.path / "metrics.jsonl", "a") as file:
        file.write('{"epoch": 2, "upd')
    assert [record["epoch"] for record in folder.metrics()] == [1]


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 400 kB, and a function that mounts it anew with other options."""
    if os.name != "posix" or os.geteuid() != 0:
        pytest.skip("only root may mount a small disk")

    def mount(*options):
        return subprocess.run(["mount", *options, str(tmp_path)], capture_output=True, text=True, check=False)

    done = mount("-t", "tmpfs", "-o", "size=400k", "tmpfs")
    if done.returncode != 0:
        pytest.skip(f"a small disk cannot be mounted here: {done.stderr.strip()}")
    yield tmp_path, lambda option: mount("-o", f"remount,{option}").check_returncode()
    subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_full_disk_stops_the_run_and_keeps_what_was_written(small_disk, tmp_path_factory):
    disk, remount = small_disk
    recipe = tiny(model__hidden_size=48, train__average_from=999)  # 10,000 weights: 160 kB a checkpoint
    with pytest.raises(OSError, match=r"could not write its files: No space left .* rerun the same command"):
        run(recipe, 3, disk)
    (folder,) = disk.glob("adding/short/*")
    assert not RunFolder(folder).finished
    assert load_tree(folder / "last.ckpt")["progress"]["updates"] > 0
    assert not list(folder.glob(".*.tmp"))
    remount("size=4m")
    resumed, _ = run(recipe, 3, disk)
    expected, _ = run(recipe, 3, tmp_path_factory.mktemp("enough"))
    assert_same_run(resumed, expected)


def test_a_read_only_folder_is_an_error_that_says_what_to_do(small_disk):
    disk, remount = small_disk
    stopped_after(2, disk)
    remount("ro")
    with pytest.raises(OSError, match=r"could not write its files: Read-only file system"):
        run(tiny(train__checkpoint_minutes=0.0), 3, disk)
    with pytest.raises(OSError, match="Read-only file system"):
        run(tiny(), 4, disk)
    remount("rw")


def test_a_changed_recipe_is_refused_with_the_difference(tmp_path):
    folder = stopped_after(7, tmp_path)
    with pytest.raises(ValueError, match=r"keep its recipe, but these values differ: train\.epochs was 4, is 9"):
        resume(folder, expected=tiny(train__checkpoint_minutes=0.0, train__epochs=9))
    file = folder.path / "recipe.toml"
    text = file.read_text()
    file.write_text(text.replace("batch_size = 100", "batch_size = 4").replace("dt = 0.0707", ""))
    differences = (
        r"has changed since the run was started: model\.dt was 0\.0707, is not set; train\.batch_size was 100, is 4"
    )
    with pytest.raises(ValueError, match=differences):
        resume(RunFolder(folder.path))
    with pytest.raises(ValueError, match=r"has changed since the run was started: model\.dt was not set, is 0\.0707"):
        run(tiny(train__checkpoint_minutes=0.0), 3, tmp_path)
    file.write_text(text)
    resumed, progress = resume(RunFolder(folder.path))
    assert progress.updates == 20
    assert resumed.finished


def test_a_checkpoint_of_another_format_is_refused_and_another_version_is_noted(tmp_path):
    folder = stopped_after(7, tmp_path)
    environment = json.loads((folder.path / "env.json").read_text())
    (folder.path / "env.json").write_text(json.dumps({**environment, "lem": "0.0.9"}))
    with pytest.warns(UserWarning, match=r"was started with lem 0\.0\.9 and is continued with lem"):
        run(tiny(train__checkpoint_minutes=0.0), 3, tmp_path, should_stop=lambda: True)
    (folder.path / "env.json").write_text(json.dumps(environment))
    tree = load_tree(folder.path / "last.ckpt")
    tree["about"] |= {"format": 99, "lem": "7.0"}
    save_tree(folder.path / "last.ckpt", tree)
    with pytest.raises(ValueError, match=r"must have format 1, .* got 99 of version 7\.0\. Continue with that version"):
        resume(RunFolder(folder.path))


def test_a_run_is_not_trained_twice_at_once(tmp_path):
    folder = stopped_after(7, tmp_path)
    with folder.held(), pytest.raises(ValueError, match="is locked by another process"):
        run(tiny(train__checkpoint_minutes=0.0), 3, tmp_path)
    resumed, _ = run(tiny(train__checkpoint_minutes=0.0), 3, tmp_path)
    assert resumed.finished


def test_a_machine_without_git_is_described_all_the_same(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert environment()["commit"] is None
