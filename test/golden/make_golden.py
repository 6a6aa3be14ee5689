"""Makes the golden files of the training tests with PyTorch: python make_golden.py [NAME...] [--only PRECISION] (torch,
torchvision, h5py, numpy). --only recomputes the figures of one precision and leaves all others in the file as they are.
fp16 needs a processor with AVX-512 FP16; if AMX is only partly visible, also ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16.

For each network: the loss of ten steps in fp64, and for step 1 the gradient and the updated weights of every tensor at
64 fixed places in fp64. For each of fp32, bf16 and fp16 (autocast; fp16 with a loss scale), how far PyTorch's own runs
in it are from that (layouts x threads, and where that is cheap x kernels x order of the samples in a batch): the spread
of the losses, which is a running maximum of the relative distance, at least 2e-6, and the maximum error of the
gradients and of the weights. The files contain nothing of the data set.
"""
import argparse
import itertools
import json
import math
import os
import pathlib
import sys

import torch

import networks

HERE = pathlib.Path(__file__).parent
DATA = HERE.parent.parent / "data" / "samples" / "cifar10_train.h5"
STEPS, PLACES = 10, 64
PRECISIONS = ("fp32", "bf16", "fp16")
AUTOCAST = dict(bf16=torch.bfloat16, fp16=torch.float16)
LOSS_SCALE = 1024.0
SETTINGS = dict(learning_rate=0.1, momentum=0.9, weight_decay=5e-4)
# With every gamma at 1, fifty layers diverge at this learning rate (loss 38 after one step, PyTorch's fp32 gradients 2
# % off): that would compare noise. With the last gamma of each block at 0 (Goyal et al., 2017), training is well
# conditioned. With seed 2, no ReLU input in the first step is so close to the kink that its sign in fp32 depends on
# rounding.
CASES = [
    dict(name="resnet18_32", seed=1, depth=18, stem="cifar", classes=10, scale=1, batch=32,
         label_smoothing=0.0, zero_gamma=False, many_runs=False),
    dict(name="resnet50_64", seed=2, depth=50, stem="imagenet", classes=10, scale=2, batch=16,
         label_smoothing=0.1, zero_gamma=True, many_runs=True),
]


class HalfConvolution(torch.autograd.Function):
    """PyTorch's convolution in fp16 with another gradient: its own falls back to a naive loop on CPUs (seconds a layer).
    The products of fp16 values are summed in fp32 and rounded to fp16 once, as on a GPU."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float16)
    def forward(ctx, x, weight, stride, padding):
        ctx.save_for_backward(x, weight)
        ctx.where = (stride, padding)
        return torch.nn.functional.conv2d(x, weight, None, stride, padding)

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        stride, padding = ctx.where
        dx, dw, _ = torch.ops.aten.convolution_backward(gradient.float(), x.float(), weight.float(), None, stride, padding,
                                                        [1, 1], False, [0, 0], 1, [ctx.needs_input_grad[0], True, False])
        return None if dx is None else dx.half(), dw.half(), None, None


def in_half(net):
    """The net with HalfConvolution in place of each of its convolutions (none has a bias)."""
    for m in net.modules():
        if isinstance(m, torch.nn.Conv2d):
            m.forward = lambda x, m=m: HalfConvolution.apply(x, m.weight, m.stride, m.padding)
    return net


def places(n):
    return [(i * 2654435761) % n for i in range(min(PLACES, n))]


def run(case, precision, layout, threads, reverse=False):
    torch.set_num_threads(threads)
    dtype = torch.float64 if precision == "fp64" else torch.float32
    net = networks.make(case["depth"], case["stem"], case["classes"], case["zero_gamma"], case["seed"], dtype)
    net = net.to(memory_format=layout).train()
    if precision == "fp16":
        in_half(net)
    optimizer = torch.optim.SGD(net.parameters(), SETTINGS["learning_rate"], SETTINGS["momentum"],
                                weight_decay=SETTINGS["weight_decay"])
    loss_of = torch.nn.CrossEntropyLoss(label_smoothing=case["label_smoothing"])
    scale = LOSS_SCALE if precision == "fp16" else 1.0
    losses, first = [], {}
    for step in range(STEPS):
        x, y = networks.images(DATA, step * case["batch"], case["batch"], case["scale"])
        if reverse:
            x, y = x.flip(0), y.flip(0)
        optimizer.zero_grad()
        with torch.autocast("cpu", AUTOCAST.get(precision), enabled=precision in AUTOCAST):
            loss = loss_of(net(x.to(dtype).contiguous(memory_format=layout)), y)
        (loss * scale).backward()
        for p in net.parameters():
            p.grad /= scale  # a power of two: exact
        optimizer.step()
        losses.append(loss.item())
        if step == 0:
            for name, p in net.named_parameters():
                at = torch.tensor(places(p.numel()))
                pick = lambda t: t.detach().contiguous().reshape(-1)[at].double().tolist()
                first[name] = dict(gradient=pick(p.grad), weight=pick(p),
                                   gradient_norm=p.grad.double().norm().item())
    return losses, first


def distance(first, exact, what):
    """Euclidean distance over all places of all tensors."""
    return math.sqrt(sum((a - b) ** 2 for name in exact for a, b in zip(first[name][what], exact[name][what])))


def apart(case, precision, exact_losses, exact):
    """How far PyTorch's runs in this precision are from the fp64 run."""
    spread, errors = [2e-6] * STEPS, dict(gradient=0.0, weight=0.0)
    runs = itertools.product((torch.contiguous_format, torch.channels_last), (1, 2),
                             (True, False) if case["many_runs"] and precision == "fp32" else (True,),
                             (False, True) if case["many_runs"] else (False,))
    for layout, threads, onednn, reverse in runs:
        with torch.backends.mkldnn.flags(enabled=onednn):
            losses, first = run(case, precision, layout, threads, reverse)
        distances = [abs(a / b - 1.0) for a, b in zip(losses, exact_losses)]
        spread = [max([s] + distances[:i + 1]) for i, s in enumerate(spread)]
        found = {what: distance(first, exact, what) for what in errors}
        errors = {what: max(errors[what], found[what]) for what in errors}
        print(case["name"], precision, layout, threads, onednn, reverse, [f"{v:.0e}" for v in distances], found,
              flush=True)
    return dict(spread=spread, gradient_error=errors["gradient"], weight_error=errors["weight"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[[], *(c["name"] for c in CASES)])
    parser.add_argument("--only", metavar="PRECISION", choices=PRECISIONS)
    args = parser.parse_args()
    for case in (c for c in CASES if c["name"] in args.names or not args.names):
        path = HERE / f"{case['name']}.json"
        losses, exact = run(case, "fp64", torch.contiguous_format, 2)
        if args.only:
            golden = json.loads(path.read_text())
            differ = max(abs(a / b - 1) for a, b in zip(losses, golden["losses"]))
            if not differ < 1e-9:
                sys.exit(f"{path.name}: the fp64 losses of the file are others than here (by {differ:.0e}): make all of it")
            first_step = golden.pop("first_step")  # stays last in the file
            golden[args.only] = apart(case, args.only, golden["losses"], first_step)
            golden["first_step"] = first_step
        else:
            golden = dict(case, **SETTINGS, torch=torch.__version__, steps=STEPS, losses=losses,
                          **{precision: apart(case, precision, losses, exact) for precision in PRECISIONS},
                          first_step=exact)
        path.write_text(json.dumps(golden, indent=None, separators=(",", ":")) + "\n")
        print(path.name, os.path.getsize(path), "bytes; losses", [f"{v:.4f}" for v in losses])


if __name__ == "__main__":
    main()
