"""What it costs the forked backend that uploads come to the server, and are not summed where they were made.

    python -m benchmarks.upload_cost J1 J2

Processor seconds a round of copying and summing uploads, the share of a round that they take, and the memory of
the uploads. Workers that kept them until the weights are known would hold the same bytes between them, and would
add up the same numbers, each its own: the copy is what could be saved, and a part of the sums.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from benchmarks.environments import ROOT
from benchmarks.jobs import JOBS
from benchmarks.marks import Marks
from fedwcm.engine.backends.in_process import BlockCollector
from fedwcm.engine.uploads import UploadRows

ROUNDS = {"J1": 12, "J2": 3}


class Timed:
    """Adds up the seconds of calls."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **options: Any) -> Any:
            began = time.thread_time()
            try:
                return call(*arguments, **options)
            finally:
                self.seconds += time.thread_time() - began

        return timed


def measure(name: str) -> None:
    """Play rounds of a job with two forked workers, and print what uploads cost."""
    import fedwcm

    job, copying, summing = JOBS[name], Timed(), Timed()
    setattr(BlockCollector, "put", copying.wrap(BlockCollector.put))  # noqa: B010 (a method)
    setattr(UploadRows, "sum", summing.wrap(UploadRows.sum))  # noqa: B010
    marks = Marks(time.perf_counter, lambda: copying.seconds, lambda: summing.seconds)
    own = {"run.rounds": ROUNDS[name], "run.eval_every": ROUNDS[name], "run.workers": 2, "run.backend": "parallel"}
    result = fedwcm.run("fedavg", settings=job.settings() | own, progress=marks)
    whole, copied, summed = map(median, marks.steps(1))
    size = 4 * job.cohort * result.summary.parameters
    print(
        f"{name}: a round {whole:.4g} s, copying {copied:.3g} s ({copied / whole:.1%}), summing {summed:.3g} s "
        f"({summed / whole:.1%}), uploads {size / 1e6:.0f} MB"
    )


if __name__ == "__main__":
    for job_name in sys.argv[1:]:
        subprocess.run([sys.executable, "-m", "benchmarks.data", job_name], cwd=ROOT, check=True)
        measure(job_name)
