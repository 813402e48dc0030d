import torch

# On a machine with few cores, threads of several test processes fight: one each is several times faster.
torch.set_num_threads(1)
