"""What all tests share: one thread, and property tests without a clock."""

import torch
from hypothesis import settings

# The models here are so small that more threads would only add waiting, and change the order of sums.
torch.set_num_threads(1)

# A busy machine must not fail a law.
settings.register_profile("steady", deadline=None, max_examples=50)
settings.load_profile("steady")
