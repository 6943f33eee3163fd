"""Data bases as storages: drivers, passwords, locks, and a PostgreSQL server that restarts in the middle of a study."""

import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from lem.cli import main
from lem.experiments.storage import PATIENCE, Patient, import_optuna, open_storage, with_driver
from tests.experiments.test_tune import CONTEXT, assert_each_place_once, never, recipe, study


@pytest.mark.parametrize("url", ["postgresql://u@h:1/d", "postgres://u@h:1/d", "postgresql+psycopg://u@h:1/d"])
def test_urls_of_postgresql_get_the_driver_of_the_extra(url):
    assert with_driver(url) == "postgresql+psycopg://u@h:1/d"


@pytest.mark.parametrize("url", ["postgresql+psycopg2://u@h/d", "mysql://u@h/d", "sqlite:///x.db"])
def test_other_drivers_stay(url):
    assert with_driver(url) == url


def test_a_missing_driver_is_named_with_its_extra(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    assert main(["tune", "adding/lem", "--storage", "postgresql://u:secret@localhost:9/d"]) == 2
    message = capsys.readouterr().err
    assert "A study in PostgreSQL needs psycopg" in message
    assert "pip install '.[postgres]'" in message


def test_an_unreachable_server_is_named_without_the_password(tmp_path, monkeypatch, capsys):
    pytest.importorskip("psycopg")
    monkeypatch.chdir(tmp_path)
    assert main(["tune", "adding/lem", "--storage", "postgresql://u:secret@127.0.0.1:9/d"]) == 2
    message = capsys.readouterr().err
    assert "The storage 'postgresql://u:***@127.0.0.1:9/d' could not be opened" in message
    assert "secret" not in message
    assert message.count("\n") == 1


def test_a_call_is_tried_again_until_the_data_base_answers(tmp_path):
    url = f"sqlite:///{tmp_path}/study.db?timeout=0.05"
    patient, hasty = open_storage(url), Patient(import_optuna().storages.RDBStorage(url), patience=0.0)
    place = study(url).storage.get_study_id_from_name("test")
    lock = sqlite3.connect(tmp_path / "study.db", check_same_thread=False)
    lock.execute("BEGIN EXCLUSIVE")
    with pytest.raises(import_optuna().exceptions.StorageInternalError):
        hasty.set_study_user_attr(place, "a", 1)
    release = threading.Timer(0.5, lock.rollback)
    release.start()
    patient.set_study_user_attr(place, "a", 2)
    release.join()
    lock.close()
    assert patient.get_study_user_attrs(place) == {"a": 2}


def test_a_mistake_is_not_tried_again(tmp_path):
    storage = open_storage(f"sqlite:///{tmp_path}/study.db")
    began = time.monotonic()
    with pytest.raises(KeyError):
        storage.get_study_user_attrs(7)
    assert time.monotonic() - began < PATIENCE / 2


# --- a real server --------------------------------------------------------------------------------------------

PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name.partition(".")[0]))


def program(name):
    return str(PROGRAMS[-1] / name) if PROGRAMS else shutil.which(name)


class Server:
    """A PostgreSQL server of its own on loopback. It refuses to run as root, so then it runs as Debian's user."""

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="lem-postgres-"))
        self.user = {"user": "postgres", "group": "postgres", "extra_groups": []} if os.getuid() == 0 else {}
        if self.user:
            shutil.chown(self.folder, "postgres", "postgres")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.data = str(self.folder / "data")
        self.url = f"postgresql://lem@127.0.0.1:{self.port}/studies"
        self.call("initdb", "-D", self.data, "-U", "lem", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C")
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={self.folder}"
        self.control("start", "-o", options)
        self.call("createdb", "-h", "127.0.0.1", "-p", str(self.port), "-U", "lem", "studies")

    def call(self, name, *words):
        done = subprocess.run(
            [program(name), *words], capture_output=True, text=True, cwd=self.folder, timeout=120, **self.user
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def control(self, *words):
        log = str(self.folder / "log")
        # pg_ctl hands its pipes to the server, so nothing may wait for their end.
        with open(os.devnull, "w") as nothing:
            subprocess.run(
                [program("pg_ctl"), "-D", self.data, "-w", "-t", "60", "-l", log, *words],
                check=True, stdout=nothing, stderr=nothing, cwd=self.folder, timeout=120, **self.user,
            )  # fmt: skip

    def close(self):
        self.control("stop", "-m", "immediate")
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture
def server():
    pytest.importorskip("psycopg")
    if program("initdb") is None:
        pytest.skip("needs a PostgreSQL server; Debian: apt install postgresql")
    server = Server()
    yield server
    server.close()


def _work(url, runs, patience):
    import torch

    torch.set_num_threads(1)
    one = study(url, trials=24, grace=5.0, what=recipe(train__epochs=6))
    one.storage._patience = patience
    one.work(runs, never)


@pytest.fixture
def watched(server):
    """The study as the test sees it; psycopg warns of connections that nobody closes."""
    one = study(server.url, trials=24, what=recipe(train__epochs=6))
    yield one
    one.storage.remove_session()
    one.storage.engine.dispose()


def wait_for(condition):
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
def test_a_study_survives_a_killed_worker_and_an_immediate_restart_of_the_server(server, watched, tmp_path):
    workers = [CONTEXT.Process(target=_work, args=(server.url, tmp_path / "runs", 120.0)) for _ in range(3)]
    for worker in workers:
        worker.start()
    wait_for(lambda: len(watched.done()) >= 4 and watched.all_trials("RUNNING"))
    workers[0].kill()
    wait_for(lambda: len(watched.done()) >= 8 and watched.all_trials("RUNNING"))
    server.control("restart", "-m", "immediate")  # no connection is closed in order, no transaction ends
    assert len(watched.done()) < 24, "the study ended before the server was restarted"
    for worker in workers:
        worker.join(300)
    assert [worker.exitcode for worker in workers] == [-9, 0, 0]
    assert_each_place_once(watched.done(), 24)
    assert not watched.all_trials("RUNNING", "WAITING")
    assert len(watched.all_trials("FAIL")) <= 4  # the killed worker's, and claims whose answers were lost


@pytest.mark.slow
def test_without_patience_the_restart_ends_a_worker(server, watched, tmp_path):
    """The test above can fail."""
    worker = CONTEXT.Process(target=_work, args=(server.url, tmp_path / "runs", 0.0))
    worker.start()
    wait_for(lambda: len(watched.done()) >= 2)
    server.control("restart", "-m", "immediate")
    worker.join(300)
    assert worker.exitcode == 1
