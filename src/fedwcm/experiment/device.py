"""The device that a run computes on, and the precision of its local training."""

import torch

from fedwcm.engine.precision import Precision, PrecisionName, precision_problem


def chosen_device(name: str) -> torch.device:
    """Return the device of this name; `auto` is a GPU if there is one."""
    if name != "auto":
        return _present_device(name)
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def choose_kernels(device: torch.device) -> None:
    """Make a GPU convolve in float32 where float32 is asked for, and in the same way every time.

    By default, cuDNN rounds the factors of float32 convolutions to 10 bits (TF32), and may choose algorithms whose
    sums depend on the order in which threads finish. Does nothing for other devices.
    """
    if device.type == "cuda":
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False


def chosen_precision(name: PrecisionName, device: torch.device) -> Precision:
    """Return the precision of this name; an error says why the device cannot train in it."""
    precision = Precision(name)
    problem = precision_problem(precision, device)
    if problem:
        raise ValueError(
            f"run.precision = {name!r} cannot be used on {device}: {problem}. Use fp32, or another device"
        )
    return precision


def _present_device(name: str) -> torch.device:
    """Return the device of this name; an error says why it cannot be used."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"run.device = {name!r} is not allowed: it must be auto, cpu, cuda, mps, …") from None
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, ImportError) as error:  # which of them depends on the device
        reason = str(error).partition("\n")[0].partition(". ")[0].rstrip(".")
        raise ValueError(
            f"run.device = {name!r} cannot be used here: {reason}. Use cpu, or auto: a GPU if there is one"
        ) from None
    return device
