"""`python -m fedwcm.teacher`: make a teacher file with CLIP."""

import argparse
import sys
from collections.abc import Sequence

import torch

from fedwcm.data import load_dataset
from fedwcm.teacher.clip import PROMPT, OpenClip, zero_shot
from fedwcm.teacher.file import TEACHER_FILE


def main(arguments: Sequence[str] | None = None) -> int:
    """Write a teacher file; return the exit code, 0 or (after an error message) 2."""
    options = _parser().parse_args(arguments)
    try:
        encoder = OpenClip(options.model, options.weights, options.device)
        dataset = load_dataset(
            options.dataset,
            data_dir=options.data_dir,
            label=options.label,
            image_size=options.image_size,
            test_fraction=options.test_fraction,
            seed=options.seed,
        )
        teacher = zero_shot(dataset, encoder, options.prompt)
    except (ValueError, OSError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    facts = {"dataset": dataset.name, "classes": list(dataset.classes), "prompt": options.prompt}
    teacher.write(options.out, {**facts, "model": options.model, "weights": options.weights})
    correct = (teacher.logits.argmax(dim=-1) == teacher.labels).double().mean()
    print(f"{options.out}: {len(teacher.labels)} samples, {float(correct):.1%} of them classified correctly")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m fedwcm.teacher",
        description="Classify a data set's training samples with CLIP, for clip2fl.",
    )
    parser.add_argument(
        "--dataset", required=True, help="as in fedwcm run: a named data set, a folder of images, …"
    )
    parser.add_argument("--data-dir", help="folder to search first for named data sets")
    parser.add_argument("--label", help="label column of a data set from the hub")
    parser.add_argument("--image-size", type=int, help="side of the square images, as in the runs")
    parser.add_argument(
        "--test-fraction", type=float, default=0.2, help="fraction held out for testing, as in the runs"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of that split, as in the runs")
    parser.add_argument("--model", default="ViT-B-32-quickgelu", help="a model of open_clip (%(default)s)")
    parser.add_argument("--weights", default="openai", help="a tag of open_clip or a file (%(default)s)")
    parser.add_argument("--prompt", default=PROMPT, help="text for a class, with {} for its name (%(default)s)")
    parser.add_argument(
        "--device", default="cuda" if torch.cuda.is_available() else "cpu", help="%(default)s here"
    )
    parser.add_argument("--out", default=TEACHER_FILE, help="file to write (%(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
