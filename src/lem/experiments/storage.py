"""Where a study is kept: a journal file, a gRPC proxy or a data base, which may be away for a while."""

import re
import time
import warnings
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from lem.extras import extra

PATIENCE = 120.0
"""Seconds for which a call is tried again while the data base cannot be reached."""


def import_optuna() -> Any:
    """Return optuna, which then reports errors alone."""
    module = extra("optuna", "Tuning needs")
    module.logging.set_verbosity(module.logging.ERROR)
    return module


def open_storage(url: str) -> Any:
    """Return the storage of a URL: a file (a journal), grpc://host:port (a proxy) or a data base's URL."""
    library = import_optuna()
    try:
        if "://" not in url:
            Path(url).parent.mkdir(parents=True, exist_ok=True)
            backend = library.storages.journal.JournalFileBackend(url)
            return library.storages.JournalStorage(backend)
        if url.startswith("grpc://"):
            host, _, port = url.removeprefix("grpc://").partition(":")
            with warnings.catch_warnings(category=library.exceptions.ExperimentalWarning, action="ignore"):
                proxy = library.storages.GrpcStorageProxy(host=host, port=int(port or 13000))
            proxy.wait_server_ready(timeout=20)
            return proxy
        return Patient(library.storages.RDBStorage(with_driver(url)))
    except MissingDriverError:
        raise
    except Exception as error:  # every kind of storage fails in its own way
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConnectionError(
            f"The storage {without_password(url)!r} could not be opened: {without_password(reason)}. Give a file, "
            "grpc://host:port or a database URL."
        ) from error


class MissingDriverError(ImportError):
    """The library that speaks to a kind of data base is not installed."""


def with_driver(url: str) -> str:
    """Return a data base's URL with the driver that the extra `postgres` installs, unless it names another."""
    match = re.match(r"postgres(ql)?(\+psycopg)?://", url)
    if match is None:
        return url
    try:
        extra("psycopg", "A study in PostgreSQL needs")
    except ImportError as error:
        raise MissingDriverError(str(error)) from error
    return f"postgresql+psycopg://{url[match.end() :]}"


def without_password(text: str) -> str:
    """Return a text with the passwords of URLs replaced by ***."""
    return re.sub(r"(://[^/\s:@]*:)[^/\s@]*@", r"\1***@", text)


class Patient:
    """A storage in a data base whose calls are tried again if the data base cannot be reached, as while it restarts.

    A call may have had its effect although its answer was lost. Then the second time it does nothing or reports that
    the trial has ended; a waiting trial may be made twice, and a claimed one may seem taken. Studies allow for all of
    it: a place filled twice is done once, and a trial without a sign of life is tried again.
    """

    def __init__(self, storage: Any, patience: float = PATIENCE) -> None:
        self._storage, self._patience = storage, patience

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # pickle and copy ask for these before there is a storage
            raise AttributeError(name)
        found = getattr(self._storage, name)
        return self._tried_again(found) if callable(found) and not name.startswith("_") else found

    def _tried_again(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def call(*arguments: Any, **options: Any) -> Any:
            deadline, pause = time.monotonic() + self._patience, 0.1
            while True:
                try:
                    return method(*arguments, **options)
                except Exception as error:
                    if not unreachable(error) or time.monotonic() > deadline:
                        raise
                time.sleep(pause)
                pause = min(2.0 * pause, 2.0)

        return call


def unreachable(error: BaseException | None) -> bool:
    """Return whether an error, or what caused it, means that the data base cannot be reached at the moment."""
    from sqlalchemy import exc

    while error is not None:
        if isinstance(error, exc.OperationalError | exc.InterfaceError | exc.PendingRollbackError):
            return True
        if isinstance(error, exc.DBAPIError) and error.connection_invalidated:
            return True
        error = error.__cause__
    return False
