"""The runs of a comparison on a Ray cluster: whole runs on its workers, or the clients of one run at a time.

A run on a worker writes into its folder if the worker sees it: if all nodes share it, or there is only one node.
Otherwise it writes into a temporary folder, whose files are sent here as they change: a run that is stopped or
lost resumes from its last checkpoint wherever it is started next.
"""

import tempfile
import threading
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedwcm.config.schema import RunOptions
from fedwcm.engine.backends.errors import WorkerError
from fedwcm.engine.backends.plan import WORTH_FORKING
from fedwcm.experiment.files import replace_file
from fedwcm.experiment.folder import RunFolder
from fedwcm.experiment.lock import NAME as LOCK
from fedwcm.experiment.lock import wait_until_free
from fedwcm.sweeps.cluster_calls import ATTEMPTS, ClusterCalls, Ended, Send, Warned, for_one_worker, worker_count
from fedwcm.sweeps.execution import REFRESH, ComparisonProgress, FollowedRun, run_planned
from fedwcm.sweeps.plan import PlannedRun

Files = dict[str, bytes | None]
"""Contents of files by their path in the run's folder; None for one that is gone."""


def spreads_runs(options: RunOptions, runs: int, round_size: float) -> bool:
    """Return whether whole runs are spread over the cluster, and not the clients of one run after the other.

    By `run.spread` or, if it is `auto`, by rule: whole runs need no messages, so they are spread if there is one
    for each worker, or if a round is too small (clients × parameters) to be worth dividing.
    """
    if options.spread != "auto":
        return options.spread == "runs"
    return runs >= worker_count(options) or round_size < WORTH_FORKING


def run_on_cluster(planned_runs: Sequence[PlannedRun], waiting: Sequence[PlannedRun], *, quiet: bool) -> None:
    """Run what is waiting, each run on one worker, as many at a time as there are workers."""
    display = ComparisonProgress(len(planned_runs), len(planned_runs) - len(waiting), quiet)
    runs = _Runs(waiting, display)
    try:
        runs.run()
    finally:
        display.close()
        runs.unmark()


class _Runs(ClusterCalls):
    """The waiting and the running runs, by their folders."""

    def __init__(self, waiting: Sequence[PlannedRun], display: ComparisonProgress) -> None:
        super().__init__(waiting[0].config)
        self._waiting, self._display = list(waiting), display
        self._running: dict[Path, FollowedRun] = {}
        self._losses: Counter[Path] = Counter()
        self._marked: set[Path] = set()
        self._token = f".{uuid.uuid4().hex}"  # a worker that sees this file shares our file system

    def start_next(self) -> bool:
        if not self._waiting:
            return False
        planned = self._waiting.pop(0)
        self._running[planned.folder] = FollowedRun(planned)
        self._mark(planned.folder.parent)
        sent = replace(planned, folder=planned.folder.resolve(), config=for_one_worker(planned.config))
        self.start(planned.folder, _run_on_worker, sent, self.data, self._token, _contents(planned.folder))
        return True

    def receive(self, key: Path, message: Any) -> None:
        if isinstance(message, Warned):
            self._display.warn(message.text)
        else:
            _write(key, message)

    def step(self) -> bool:
        self._display.show(list(self._running.values()))
        return super().step()

    def end(self, call: Ended) -> None:
        run = self._running.pop(call.key)
        if call.lost:
            self._note_loss(run, call.lost)
        elif call.result:
            self._display.warn(f"error: {run.title}: {call.result}")
            raise WorkerError(f"{run.title}: the run in {run.folder.path} failed; see the error above")
        elif not run.folder.finished:
            raise WorkerError(f"{run.title}: the run in {run.folder.path} was stopped")
        else:
            self._display.report_end(run)

    def _note_loss(self, run: FollowedRun, how: str) -> None:
        self._losses[run.folder.path] += 1
        if self._losses[run.folder.path] == ATTEMPTS:
            raise WorkerError(f"{run.title}: a worker was lost ({how}), like {ATTEMPTS - 1} others before")
        self._display.warn(f"warning: {run.title}: a worker was lost ({how}); another goes on")
        self._waiting.insert(0, run.planned)

    def _mark(self, folder: Path) -> None:
        """Let workers find out whether they see the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / self._token).touch()
        self._marked.add(folder)

    def unmark(self) -> None:
        for folder in self._marked:
            (folder / self._token).unlink(missing_ok=True)


def _run_on_worker(send: Send, planned: PlannedRun, dataset: object, token: str, files: Files) -> str:
    """Run it, on the worker, and return the error, if any."""
    planned = replace(planned, config=replace(planned.config, source=dataset))
    try:
        if (planned.folder.parent / token).exists():
            wait_until_free(planned.folder)
            run_planned(planned)
            return ""
        with tempfile.TemporaryDirectory(prefix="fedwcm-run-") as place:
            folder = Path(place) / planned.folder.name
            _write(folder, files)
            with _Sending(folder, send):
                run_planned(replace(planned, folder=folder))
    except (ValueError, OSError) as error:
        return str(error)
    return ""


class _Sending:
    """Sends the files of a folder whenever they have changed, on a thread, and at the end."""

    def __init__(self, folder: Path, send: Send) -> None:
        self._folder, self._send = folder, send
        self._sent = _stamps(folder)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._send_changes()

    def _watch(self) -> None:
        while not self._over.wait(REFRESH):
            self._send_changes()

    def _send_changes(self) -> None:
        now = _stamps(self._folder)
        changed = [name for name, stamp in now.items() if self._sent.get(name) != stamp]
        files = _contents(self._folder, changed) | dict.fromkeys(self._sent.keys() - now.keys())
        if files:
            self._send(files)
        self._sent = {name: stamp for name, stamp in now.items() if name not in changed or name in files}


def _stamps(folder: Path) -> dict[str, tuple[int, int]]:
    """Return modification times and sizes of the files of a run, except drafts and locks."""
    stamps = {}
    for path in folder.rglob("*"):
        if path.suffix != ".tmp" and path.name != LOCK and path.is_file():
            with suppress(FileNotFoundError):
                status = path.stat()
                stamps[path.relative_to(folder).as_posix()] = status.st_mtime_ns, status.st_size
    return stamps


def _contents(folder: Path, names: Sequence[str] | None = None) -> Files:
    """Return the files of a folder, without those that disappear meanwhile."""
    files: Files = {}
    for name in sorted(_stamps(folder) if names is None else names):  # checkpoints before the metrics they need
        with suppress(FileNotFoundError):
            files[name] = (folder / name).read_bytes()
    return files


def _write(folder: Path, files: Mapping[str, bytes | None]) -> None:
    """Replace these files: metrics before the checkpoints that need them, the summary last: it ends a run."""
    run = RunFolder(folder)
    order = [run.metrics_file.name, run.checkpoints.name, run.summary_file.name]

    def place(item: tuple[str, object]) -> int:
        first = item[0].partition("/")[0]
        return order.index(first) if first in order else 0

    for name, content in sorted(files.items(), key=place):
        if content is None:
            (folder / name).unlink(missing_ok=True)
        else:
            replace_file(folder / name, content)
