"""The prediction of a step on an H200: the recorded launches give the rates that were calculated when they were recorded, and
today's launches are all counted, multiply what the model needs, and are not slower."""
import json
import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "bench" / "gpu"))
sys.argv[0] = str(ROOT / "bench" / "gpu" / "model.py")
sys.path[0] = str(ROOT / "bench" / "gpu")
sys.path.insert(1, str(ROOT / "bench"))
import language  # noqa: E402
import model  # noqa: E402

EXPECTED = {"Qwen2.5-0.5B": 130_000, "SmolLM-135M": 322_000}  # tokens/s
GOALS = dict(zip(model.CASES, (150_000, 155_000, 165_000, 410_000)))  # of today's launches
H200 = model.RATES["h200"]


class Arguments:
    device = "h200"
    binary = os.environ["LOCKSTEP"]


def total(launches, key):
    return sum(launch["launches"] * launch[key] for launch in launches)


def matrices(shape):
    """Rows and columns of the matrices of a layer."""
    width, kv = shape["width"], shape["width"] // shape["heads"] * shape["kv_heads"]
    return [(width + 2 * kv, width), (width, width), (2 * shape["ffn"], width), (width, shape["ffn"])]


in_bf16 = {}  # the bytes of packs
before = json.loads((ROOT / "bench/gpu/launches_before.json").read_text())
for case, (name, keys) in model.CASES.items():
    if not keys:
        rate = model.rate_of(case, model.predict(before[case], H200))
        assert abs(rate / EXPECTED[name] - 1) < 0.02, (case, rate)
    if "CUDA" not in model.harness.run([Arguments.binary, "--version"], "lockstep"):
        print("today's launches are not listed: this build has no CUDA")
        continue
    launches = model.launches_of(case, Arguments)
    now = model.rate_of(case, model.predict(launches, H200))
    print(f"{case}: {rate:,.0f} tokens/s before, {now:,.0f} now")
    assert now >= GOALS[case], (case, now)
    assert all(launch["kind"] for launch in launches), launches
    shape = language.SHAPES[name]
    width, head = shape["width"], shape["width"] // shape["heads"]
    layer = width * (2 * width + 2 * head * shape["kv_heads"] + 3 * shape["ffn"])
    tokens = shape["batch"] * language.SEQUENCE
    products = 6 * tokens * (shape["layers"] * layer + width * shape["vocabulary"])
    found = total([launch for launch in launches if launch["kind"].startswith("matmul")], "flops")
    assert abs(found / products - 1) < 1e-9, (found, products)
    packs = total([launch for launch in launches if launch["kind"] == "packs"], "bytes")
    in_bf16.setdefault(name, packs)  # of the first case
    # In fp8, the products of layers are those in bf16 at twice the rate, and only the copies of their operands are added.
    if "precision=fp8" in keys:
        blocks = 6 * tokens * shape["layers"] * layer
        found = total([launch for launch in launches if launch["kind"] == "matmul, fp8"], "flops")
        assert abs(found / blocks - 1) < 1e-9, (found, blocks)
        copies = shape["layers"] * sum(8 * (tokens + rows) * columns + 6 * tokens * rows for rows, columns in matrices(shape))
        added = packs - in_bf16[name]
        assert abs(added / copies - 1) < 1e-9, (added, copies)
    # AdamW reads and writes 28 bytes per parameter and writes 2, and the norm reads 4; in bf16 only, 14 and 2.
    least = 16 if keys else 34
    assert packs > least * products / 6 / tokens, launches
if "CUDA" in model.harness.run([Arguments.binary, "--version"], "lockstep"):
    # What is recomputed is a phase of its own: the blocks once more, and not the head.
    model.CASES["recompute"] = ("SmolLM-135M", ["model.recompute=block"])
    launches = [launch for launch in model.launches_of("recompute", Arguments) if launch["kind"].startswith("matmul")]
    forward, again = (total([launch for launch in launches if launch["phase"] == phase], "flops") for phase in ("forward", "recompute"))
    shape = language.SHAPES["SmolLM-135M"]
    head = 2 * shape["batch"] * language.SEQUENCE * shape["width"] * shape["vocabulary"]
    assert 0 < again <= forward - head, (forward, again, head)
    for case, (name, _) in model.DECODING.items():
        launches = model.launches_of(case, Arguments)
        kinds, shape = model.predict(launches, H200), language.SHAPES[name]
        part = model.bandwidth_of(kinds, H200)
        print(f"{case}: {100 * part:.0f} % of the bandwidth")
        width, kv = shape["width"], shape["width"] // shape["heads"] * shape["kv_heads"]
        layer = width * (2 * width + 2 * kv + 3 * shape["ffn"])
        weights = 2 * (shape["layers"] * layer + width * shape["vocabulary"])
        cache = 2 * 2 * shape["layers"] * kv * language.SEQUENCE
        assert weights + cache < total(launches, "bytes") < 1.01 * (weights + cache), (launches, weights, cache)
        assert sum(launch["launches"] for launch in launches) == 2, launches  # the stages of the model, and the sampling
        assert part > (0.7 if "0.5B" in name else 0.3), (case, part)
print("[  PASSED  ] everything")
