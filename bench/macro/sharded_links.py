"""What each setting of train.shard sends over the shaped links of the test cluster, compared with `lockstep plan`, and how much of
the communication passes hide.

The nodes are containers of this machine (test/cluster), one rank each, so they share its cores. Two trainings of a small Llama
in bf16, with 12 micro-batches, differ in their number of steps only; the bytes that a node sends in the additional ones are
counted at its interface. They include the headers of TCP. Needs root and what `make deps-test` installs for test/cluster. About
5 minutes.
"""
import json
import statistics
import sys
import time

sys.path.insert(0, sys.path[0] + "/..")
import harness  # noqa: E402
import links  # noqa: E402
import prediction  # noqa: E402

SHARDS = ("none", "optimizer", "gradients", "parameters")
CONFIG = {"architectures": ["LlamaForCausalLM"], "vocab_size": 2048, "hidden_size": 256, "intermediate_size": 688,
          "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 64,
          "tie_word_embeddings": False}
STEPS = (4, 12)
SENT = "cat /sys/class/net/eth0/statistics/tx_bytes"


def keys(directory, shard):
    return ["model.family=llama", f"model.config={directory}/model.json", "optimizer.kind=adamw", "precision=bf16", "data.train=synthetic",
            "data.validation=", "data.synthetic_samples=960", "data.sequence_length=64", "train.global_batch=48", "train.micro_batches=12",
            "train.epochs=1", "comm.bucket_mb=1", f"train.shard={shard}", "device=cpu", "cpu.threads=1", "comm.watchdog_seconds=600"]


def trained(binary, nodes, shard, steps, environment, directory):
    """The bytes that each node sent, and the run's steps."""
    name = f"run-{time.time_ns()}"
    train = [binary, "train", *keys(directory, shard), f"train.max_steps={steps}", "log.every_steps=1", f"run.directory={directory}",
             f"run.name={name}", "log.progress=false", "log.tensorboard=false", "evaluation.every_epochs=0", "checkpoint.every_epochs=0"]
    script = directory / f"{name}.sh"
    script.write_text(f"before=$({SENT})\n{' '.join(map(str, train))} >&2 || exit\nafter=$({SENT})\necho sent $((after - before))\n")
    output = links.submit(nodes, f"mpirun --bind-to none -n {nodes} sh {script}", environment, directory)
    sent = [int(line.split()[1]) for line in output.splitlines() if line.startswith("sent ")]
    if len(sent) != nodes:
        harness.stop(f"{len(sent)} of {nodes} nodes said what they sent")
    return sent, harness.steps_of(directory / name)


def planned(binary, nodes, shard, directory):
    """Bytes per step and node."""
    plan = json.loads(harness.run([binary, "plan", *keys(directory, shard), "--ranks", nodes, "--nodes", nodes, "--json"], "lockstep plan"))
    return plan["sent_between_nodes_bytes"]["per_rank"]


def measure(binary, args):
    rows, found = [], []
    with prediction.cluster(max(args.nodes), args.bandwidth, args.subnet) as (directory, environment):
        (directory / "model.json").write_text(json.dumps(CONFIG))
        for nodes in args.nodes:
            for shard in SHARDS:
                (few, _), (many, steps) = (trained(binary, nodes, shard, n, environment, directory) for n in STEPS)
                sent = [(b - a) / (STEPS[1] - STEPS[0]) for a, b in zip(few, many)]
                expected = planned(binary, nodes, shard, directory)
                counted = steps[2:]
                exchange, exposed = (statistics.median(step[key] for step in counted)
                                     for key in ("exchange_seconds", "exposed_communication_seconds"))
                seconds = statistics.median(step["step_seconds"] for step in counted)
                found.append({"nodes": nodes, "shard": shard, "sent": sent, "planned": expected, "exchange_seconds": exchange,
                              "exposed_seconds": exposed, "step_seconds": seconds})
                rows.append([nodes, f"`{shard}`", f"{expected / 1e6:.1f}", f"{max(sent) / 1e6:.1f}", f"{max(sent) / expected:.2f}",
                             f"{seconds:.2f}", f"{exchange:.2f}", f"{exposed:.2f}"])
                print(*rows[-1], flush=True)
    return rows, found


def main():
    parser = harness.parser(__doc__, name="sharded_links")
    parser.add_argument("--nodes", nargs="+", type=int, default=[2, 3, 4])
    parser.add_argument("--bandwidth", default="300mbit", help="of each link")
    parser.add_argument("--subnet", default="10.79.0")
    args = harness.begin(parser)
    rows, found = measure(args.binary, args)
    text = (f"Links of {args.bandwidth}, one rank per node. Megabytes that a node sends in a step: as `lockstep plan` says, and the most "
            "that a node sent; seconds of a step, of its exchanges, and of those the part for which the passes waited (medians).\n\n"
            + harness.table(["nodes", "`train.shard`", "planned, MB", "sent, MB", "ratio", "s/step", "exchanges, s", "exposed, s"], rows))
    harness.finish(args, "Sharding on shaped links", text, results=found)


if __name__ == "__main__":
    main()
