"""Makes schedule.json: the learning rates of PyTorch's schedulers as torchvision's references combine them, the steps after
which their average of the weights is updated, and the parameters that they exempt from weight decay with
--norm-weight-decay 0. Run in the root of the repository, with torch and torchvision."""
import json

import torch
import torchvision
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from torch.optim.swa_utils import AveragedModel


def rates(learning_rate, epochs, warmup, start, final):
    """The learning rate of each epoch."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=learning_rate)
    cosine = CosineAnnealingLR(optimizer, T_max=epochs - warmup, eta_min=final)
    schedule = cosine
    if warmup:
        linear = LinearLR(optimizer, start_factor=start, total_iters=warmup)
        schedule = SequentialLR(optimizer, schedulers=[linear, cosine], milestones=[warmup])
    found = []
    for _ in range(epochs):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return {"learning_rate": learning_rate, "epochs": epochs, "warmup": warmup, "start": start, "final": final,
            "rates": found}


def average(every_steps, steps_per_epoch, warmup_epochs, epochs, decay=0.75):
    """The fraction of the weights that each step adds to their average, as in train_one_epoch of the references."""
    model = torch.nn.Linear(1, 1, bias=False)
    averages = AveragedModel(model, avg_fn=lambda a, w, n: decay * a + (1 - decay) * w)
    momenta = []
    for epoch in range(epochs):
        for i in range(steps_per_epoch):
            with torch.no_grad():
                model.weight.fill_(1.0)
                averages.module.weight.zero_()
            if i % every_steps == 0:
                averages.update_parameters(model)
                if epoch < warmup_epochs:
                    averages.n_averaged.fill_(0)
            momenta.append(averages.module.weight.item())
    return {"every_steps": every_steps, "steps_per_epoch": steps_per_epoch, "warmup_epochs": warmup_epochs,
            "decay": decay, "momenta": momenta}


def without_decay(network):
    norms, _ = torchvision.ops._utils.split_normalization_params(network)
    exempt = {id(parameter) for parameter in norms}
    return sorted(name for name, parameter in network.named_parameters() if id(parameter) in exempt)


out = {"rates": [rates(0.5, 600, 5, 0.01, 0.0), rates(0.1, 12, 1, 0.25, 0.001), rates(0.3, 7, 0, 1.0, 0.0)],
       "averages": [average(32, 70, 2, 4), average(4, 25, 1, 3), average(5, 10, 1, 3), average(3, 2, 0, 3)],
       "without_decay": without_decay(torchvision.models.resnet50())}
with open("test/golden/schedule.json", "w") as file:
    json.dump(out, file)
    file.write("\n")
