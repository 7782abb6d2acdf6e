"""Teachers: the logits of a frozen model, such as CLIP, for every training sample of a data set.

    python -m fedwcm.teacher --dataset cifar10            # writes teacher.safetensors
    fedwcm run --method clip2fl --dataset cifar10         # reads it

CLIP runs once over the whole training set, through the package open_clip. Every run on this data set can use the
file, whatever its long tail and partition, as long as the same samples are held out for testing. To use a teacher
of your own, call `Teacher.of(dataset, logits, embeddings).write(path)`.
"""

from fedwcm.teacher.clip import zero_shot
from fedwcm.teacher.file import TEACHER_FILE, Taught, Teacher, file_of, with_digest

__all__ = ["TEACHER_FILE", "Taught", "Teacher", "file_of", "with_digest", "zero_shot"]
