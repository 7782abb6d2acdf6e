"""A teacher of one's own for CLIP2FL: a logistic regression on the whole training part, in place of CLIP.

    python examples/own-teacher/make_teacher.py --dataset digits --out teacher.safetensors
    fedwcm run --method clip2fl --dataset digits --set method.teacher=teacher.safetensors \
        --set loss.teacher=teacher.safetensors

Any model will do: a teacher is its logits for every training sample and a vector for every class.
"""

import argparse
from pathlib import Path

import torch
from sklearn.linear_model import LogisticRegression  # pip install scikit-learn
from torch.nn.functional import normalize

from fedwcm.data import load_dataset
from fedwcm.data.inputs import Normalizer
from fedwcm.teacher import Teacher


def make_teacher(dataset: str, data_dir: str | None = None) -> Teacher:
    """Fit the teacher to the training part, and ask it about the same samples."""
    data = load_dataset(dataset, data_dir=data_dir)
    inputs = Normalizer.fit(data.x_train)(data.x_train).reshape(len(data.y_train), -1)
    model = LogisticRegression(C=0.01, max_iter=50).fit(inputs, data.y_train)
    return Teacher.of(
        data,
        logits=torch.as_tensor(model.decision_function(inputs), dtype=torch.float32),
        embeddings=normalize(torch.as_tensor(model.coef_, dtype=torch.float32), dim=-1),
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Make a teacher file for CLIP2FL without CLIP.")
    parser.add_argument("--dataset", default="digits", help="a name or a path, as for fedwcm run")
    parser.add_argument("--data-dir", help="where named data sets are looked for first")
    parser.add_argument("--out", type=Path, default=Path("teacher.safetensors"))
    options = parser.parse_args()
    made = make_teacher(options.dataset, options.data_dir)
    made.write(options.out)
    right = (made.logits.argmax(dim=-1) == made.labels).float().mean()
    print(f"{options.out}: {len(made.labels):,} samples, of which the teacher takes {right:.1%} for what they are")
