"""The checks of --quick: what a first quarter of an hour on a GPU should answer, in ten rows, most important first."""
import concurrent.futures
import functools
import json
import pathlib
import re
import subprocess
import sys
import time

import generation
import harness
import language
import model
import parts
import speed
from context import (CONFIG, EXIT_UNFINISHED, FAILED, LANGUAGE_CONFIG, NOT_RUN, PASSED, REJECTED, CutShort, Failure,
                     Item, Skip, counts_of, end_group, outcome, print_line)

EXPECTATIONS = json.loads(pathlib.Path(__file__).with_name("expectations.json").read_text())
RESNET, QWEN, SMOLLM = list(EXPECTATIONS["cases"])[:3]
SHAPES = {case: language.SHAPES[name] for case, (name, keys) in model.CASES.items() if not keys}
RESNET_WORK = speed.SPEEDS["ResNet-50, 224x224, batch 256, fp16"]
RESNET_OVERRIDES = [*speed.speed_overrides(RESNET_WORK), "data.readers=12"]
MAX_DATA_WAIT = 0.02  # fraction of the time of a step
TUNING_SECONDS = 40
# The ops of a step come first. The tests of convolutions are divided among programs, since cuDNN compiles their kernels.
FIRST_OPS = ("conv2d_test", "matmul_test", "attention_test", "linear_cross_entropy_test", "batch_norm_test", "rms_norm_test",
             "rotary_test", "glu_test", "embedding_test", "optimizer_test", "pool2d_test", "clip_norm_test", "cast_test")
SHARDS = {"conv2d_test": 6, "normalization_unit_test": 2}
DEVICE = {"LOCKSTEP_TEST_DEVICE": "cuda"}
SCRIPT = pathlib.Path(__file__).with_name("device.py")


def device(context):
    context.output([context.binary, "gpu-info", "--json"])
    output = context.output([sys.executable, SCRIPT, "--describe"], launcher=[])
    (context.folder / "device_properties.json").write_text(output)
    return True, f"cuDNN's description is in {context.folder / 'device_properties.json'}"


def op_tests(context):
    tests = parts.kernel_tests(context)
    names = [name for name in FIRST_OPS if name in tests] + [name for name in tests if name not in FIRST_OPS]
    for name in names:
        n = SHARDS.get(name, 1)
        for i in range(n):
            sharded = {"GTEST_TOTAL_SHARDS": str(n), "GTEST_SHARD_INDEX": str(i)} if n > 1 else {}
            yield Item(name + (f", part {i + 1} of {n}" if n > 1 else ""), parts.test_item(*tests[name], **DEVICE, **sharded))


def golden_tests():
    names = [(network, precision, f"*{network}_{precision}") for network in parts.NETWORKS for precision in ("fp16", "bf16")]
    names += [(model, precision, f"*LanguageGolden*/{model}_{precision}_none")
              for model, precision in (("qwen2", "bf16"), ("qwen2", "fp16"), ("llama_tied", "bf16"), ("llama_tied", "fp16"), ("qwen2_16", "fp8"))]
    return [parts.golden_item(f"{name}, {precision}, compared with PyTorch", tests) for name, precision, tests in names]


def documents():
    """Windows of several short documents, in bf16."""
    def same(*second):
        def work(context):
            with harness.scratch() as folder:
                texts, tokens = pathlib.Path(folder, "texts.jsonl"), pathlib.Path(folder, "texts.h5")
                texts.write_text("".join(json.dumps({"text": f"Document {i} ends here. " * (1 + i % 7)}) + "\n"
                                         for i in range(400)))
                context.output([context.binary, "data", "import", "text", texts, tokens, "--tokenizer",
                                "data/samples/tokenizer.json"])
                fixed = ["precision=bf16", "reproducible=true", "device=cuda", f"data.train={tokens}", "data.cross_documents=false"]
                return language.same_bits(fixed, ([], 1, {}), (list(second), 1, {}))(context)
        return work
    return [Item("documents, bf16: captured and uncaptured steps give the same bits", same("cuda.graph=false")),
            Item("documents, bf16: a second training gives the same bits", same())]


def training(case, config, overrides, cache):
    """`cache`: a folder beside the results that keeps what tuning finds."""
    def work(context):
        return measured(case, speed.measured_training(
            context, config, overrides, LOCKSTEP_CACHE=cache if cache == "none" else str(context.folder / cache)))
    return work


def images_per_second(*overrides, cache="none"):
    return training(RESNET, CONFIG, [*RESNET_OVERRIDES, "train.max_steps=30", *overrides], cache)


def tokens_per_second(case, *overrides, cache="none"):
    return training(case, LANGUAGE_CONFIG, language.overrides_of(SHAPES[case], "train.max_steps=25", *overrides), cache)


def measured(case, found):
    expected = EXPECTATIONS["cases"][case]
    found = {"case": case, "step_ms": 1e3 * found["step_seconds"], "rate": expected["per_step"] / found["step_seconds"], **found}
    share = f", {100 * found['utilization']:.1f} % of the matmul rate" if found["utilization"] else ""
    return True, f"{found['step_ms']:.1f} ms, {found['rate']:,.0f} {expected['unit']}{share}", found


def slower(context):
    """How much longer this GPU takes to move bytes than an H200 does. GPUs that the expectations do not know count as one."""
    rates = EXPECTATIONS["copy_bytes_per_second"]
    return rates["H200"] / next((rate for name, rate in rates.items() if name in context.report["gpu"]["name"]), rates["H200"])


def predicted(context, found, overrides):
    """{class of where_time_goes: (floor, predicted ms)} of a language model, from what it launches."""
    rates = model.RATES["h200" if "H200" in context.report["gpu"]["name"] else "h100"]
    plan = context.output([context.binary, "plan", LANGUAGE_CONFIG, *(o for o in overrides if o != "device=cuda"), "--device", "h200", "--steps",
                           "--json"])
    sums = {}
    for launch in json.loads(plan[plan.index("{"):])["launches"]:
        kind = speed.class_of(found["layers"], launch["phase"], launch["part"])
        floor, ms = sums.get(kind, (0, 0))
        sums[kind] = (floor + 1e3 * launch["launches"] * model.floor_of(launch, rates),
                      ms + 1e3 * launch["launches"] * model.seconds_of(launch, rates))
    return sums


def classes(case):
    """The time of each class of kernels in a traced training, beside its floor and what is predicted."""
    def work(context):
        config, overrides = (CONFIG, RESNET_OVERRIDES) if case == RESNET else (LANGUAGE_CONFIG, language.overrides_of(SHAPES[case]))
        found = speed.where_time_goes(context, config, overrides, ("--device", "h200"), LOCKSTEP_CACHE="none")
        rest, rows = dict(found["seconds"]), []
        if case != RESNET:
            rows = [{"class": kind, "ms": 1e3 * rest.pop(kind, 0), "floor_ms": floor, "expected_ms": expected}
                    for kind, (floor, expected) in predicted(context, found, overrides).items() if kind]
        for name, known in EXPECTATIONS["cases"][case].get("classes", {}).items():
            scale = slower(context)
            rows.append({"class": name, "ms": 1e3 * sum(rest.pop(span, 0) for span in known["spans"]),
                         "floor_ms": scale * known["floor_ms"]})
        missing = [row["class"] for row in rows if row["ms"] == 0]
        rate = EXPECTATIONS["copy_bytes_per_second"]["H200"] / slower(context)
        rows += [{"class": kind, "ms": 1e3 * seconds, "floor_ms": 1e3 * found["bytes"][kind] / rate if kind in found["bytes"] else None}
                 for kind, seconds in rest.items()]
        text = speed.where_time_goes_text(found) + (f"; the trace has no {', '.join(missing)}" if missing else "")
        return not missing, text, {"case": case, "classes": rows}
    return work


def pytorch(case, mode):
    def work(context):
        python, version = harness.torch_python(context.args.python, also=None)
        if not python:
            raise Skip(version)
        if case == RESNET:
            found = speed.run_pytorch(context, python, mode, RESNET_WORK)
        else:
            found = language.language_peer(context, python, mode, SHAPES[case])
        if "problem" in found:
            raise Failure(found["problem"])
        rate = found.get("samples_per_second") or found["tokens_per_second"]
        return True, (f"PyTorch {found['torch']}, {mode}: {1e3 * found['median_step_seconds']:.1f} ms, "
                      f"{rate:,.0f} {EXPECTATIONS['cases'][case]['unit']}"), {"case": case, "pytorch": mode, "rate": rate}
    return work


def items_of(context):
    """All checks, each with its row, its planned seconds and its limit."""
    fixed = ["reproducible=true", "precision=fp16"]
    nccl = ["comm.backend=nccl"]
    ranks = {item.name: item.work for item in parts.ranks(context)}
    memory = parts.kernel_tests(context)
    rows = [
        (15, {}, [Item("the device", device),
                  Item("ResNet-18, fp16: captured and uncaptured steps give the same bits",
                       parts.same_bits((fixed, 1, {}), ([*fixed, "cuda.graph=false"], 1, {})))]),
        (120, {"parallel": True, "limit": 150}, list(op_tests(context))),
        (50, {"parallel": True, "limit": 90}, golden_tests()),
        (30, {}, [*documents(), Item("text, fp32, compared with transformers", generation.as_transformers("llama-story")),
                  Item("text, bf16: captured and uncaptured steps draw the same tokens", generation.with_and_without_graph("bf16"))]),
        (75, {"is_timed": True}, [Item(RESNET, images_per_second()),
                                  Item(f"{QWEN}, in fp8", tokens_per_second(QWEN, "precision=fp8")),
                                  *(Item(case + (", with documents" if crosses == "false" else ""),
                                         tokens_per_second(case, f"data.cross_documents={crosses}"))
                                    for case in SHAPES for crosses in ("true", "false")),
                                  *(Item(case, generation.speed(name, *generation.PRESETS[name])) for case, (name, _) in model.DECODING.items())]),
        (55, {"is_timed": True}, [Item(f"{case}: classes of kernels", classes(case)) for case in (RESNET, *SHAPES)]),
        (85, {"is_timed": True, "limit": 2 * TUNING_SECONDS + 30}, [
            Item(f"{case}, tuned for {TUNING_SECONDS} s at most", measure(f"cuda.tuning_seconds={TUNING_SECONDS}", cache="cache"))
            for case, measure in ((RESNET, images_per_second), (QWEN, functools.partial(tokens_per_second, QWEN)))]),
        (45, {}, [Item("NCCL, one rank: the same bits as without it", parts.same_bits((fixed, 1, {}), ([*fixed, *nccl], 1, {}))),
                  *(Item(f"NCCL, {name}", work) for name, work in ranks.items() if "threads" not in name)]),
        (85, {"is_timed": True}, [Item(f"PyTorch, {mode}: {case}", pytorch(case, mode))
                                   for mode in ("eager", "compile") for case in (RESNET, QWEN)]),
        (40, {"parallel": True, "limit": 90}, [
            Item(f"memcheck: {name}", parts.sanitized("memcheck", memory[name]))
            for name in ("embedding_test", "pool2d_test", "attention_test") if name in memory])]
    items = []
    for row, (seconds, options, found) in enumerate(rows, 1):
        for item in found:
            planned = seconds / max(1, len(found))
            limit = min(options.get("limit", 2 * planned + 20), context.args.limit)
            items.append(Item(f"{row} {item.name}", item.work, planned, **{**options, "limit": limit}))
    return items


class Watch:
    """Notes the clock of the device while a check runs."""

    def __init__(self, context, file):
        self.file = file
        with open(file, "w") as output:
            self.child = subprocess.Popen([sys.executable, str(SCRIPT), "--watch", context.report["gpu"].get("pci_bus", "")],
                                          stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True)

    def end(self):
        """({figure: value}, reasons for a lower clock)."""
        end_group(self.child)
        lines = [json.loads(line) for line in self.file.read_text().splitlines() if re.fullmatch(r"\{.*\}", line)]
        clocks = sorted(line["clock_mhz"] for line in lines)
        reasons = sorted({reason for line in lines for reason in line["throttled"]})
        return {"clock_mhz": clocks[len(clocks) // 2] if clocks else None}, reasons


class DeviceLost(Exception):
    pass


def run_item(item, context, records):
    """Runs one check; returns its record and whether it had to be ended."""
    begin = time.monotonic()
    file = context.folder / "outputs" / (re.sub(r"[^A-Za-z0-9]+", "-", item.name).strip("-") + ".txt")
    file.parent.mkdir(parents=True, exist_ok=True)
    own = context.copy_for(item, file)
    watch = Watch(context, file.with_suffix(".clock")) if item.is_timed else None
    try:
        status, text, figures = outcome(item, own)
    finally:
        clock, reasons = watch.end() if watch else ({}, [])
    wait = figures.get("data_wait", 0)
    if status == PASSED and (reasons or wait > MAX_DATA_WAIT):
        why = f"the device was throttled ({', '.join(reasons)})" if reasons else f"{100 * wait:.1f} % of the time spent waiting for data"
        status, text = REJECTED, f"{why}: {text}"
    elif item.is_timed and clock["clock_mhz"] is None and figures:
        text += "; the clock is unknown"
    return {"item": item.name, "status": status, "seconds": round(time.monotonic() - begin, 1), "text": text,
            "again": records.get(item.name, {}).get("status") == REJECTED, "figures": {**figures, **clock}, "commit": context.report["version"]["commit"],
            "gpu": context.report["gpu"]["name"]}, own.hung


def records_of(context):
    """{item: its last record} from results.jsonl. A line that was cut off is ignored."""
    records = {}
    if context.lines.exists():
        for line in context.lines.read_text(errors="replace").splitlines():
            try:
                record = json.loads(line)
                records[record["item"]] = record
            except (ValueError, KeyError, TypeError):
                continue
    return records


def is_done(item, context, records):
    record = records.get(item.name)
    if record is None or record["commit"] != context.report["version"]["commit"]:
        return False
    return record["status"] in (PASSED, FAILED, NOT_RUN) or (record["status"] == REJECTED and record["again"])


def answers(context):
    """Whether the device still reports its name after a check that had to be ended."""
    try:
        return context.run([context.binary, "gpu-info"], limit=20)[0] == 0
    except Failure:
        return False
    except CutShort:
        return True


def run_items(items, context, records):
    """Runs checks until none is left, the time is up, or the device is lost. Returns the reason to stop, or None."""
    is_first = True
    while items:
        n = next((i for i, item in enumerate(items) if not item.parallel), len(items)) or 1
        waiting, running, items = items[:n], set(), items[n:]
        with concurrent.futures.ThreadPoolExecutor(context.args.jobs) as pool:
            try:
                while waiting or running:
                    while waiting and len(running) < context.args.jobs and (
                            is_first or waiting[0].seconds <= context.args.seconds - context.seconds()):
                        is_first = False
                        print_line(waiting[0].name)
                        running.add(pool.submit(run_item, waiting.pop(0), context, records))
                    if not running:
                        return f"the {context.args.minutes:g} minutes are up"
                    finished, running = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
                    for record, hung in (future.result() for future in finished):
                        records[record["item"]] = record
                        with context.lines.open("a") as lines:
                            lines.write(json.dumps(record) + "\n")
                        print_line(f"  {record['item']}: {record['status']}: {record['text']}")
                        if hung and not answers(context):
                            raise DeviceLost("the device does not answer any more")
            except BaseException:
                context.end_children()  # the pool waits for them
                raise
    return None


def table_of_figures(context, records):
    rows = []
    for record in records.values():
        figures = record["figures"]
        if "rate" not in figures:
            continue
        known = EXPECTATIONS["cases"][figures["case"]]
        moved = known.get("moves", 1)  # the part of the floor that moves bytes
        scale = 1 + moved * (slower(context) - 1)
        ms, floor = 1e3 * known["per_step"] / figures["rate"], scale * known["floor_ms"]
        goal = f"{known['goal']:,}" if "goal" in known else f"{100 * known['goal_utilization']:.0f} % of the matmul rate"
        rows.append([record["item"], record["status"], f"{ms:.1f}", f"{floor:.1f}", f"{ms / floor:.2f}", f"{scale * known['expected_ms']:.1f}",
                     f"{1e3 * known['per_step'] / scale / known['expected_ms']:,.0f}", f"{figures['rate']:,.0f} {known['unit']}", goal, f"{100 * figures['utilization']:.1f} %" if figures.get("utilization") else "",
                     figures.get("clock_mhz") or ""])
    return harness.table(["", "", "ms per step", "floor", "of the floor", "expected ms", "expected rate", "rate", "goal on an H200", "of the matmul rate", "MHz"], rows)


def table_of_classes(records, n=10):
    """The classes whose kernels lose most time against their floor."""
    found = [(row["ms"] - row["floor_ms"], record["figures"]["case"], row) for record in records.values()
             for row in record["figures"].get("classes", ()) if row["floor_ms"] is not None]
    return harness.table(["case", "class", "ms", "floor", "expected", "ms above the floor"], [
        [case, row["class"], f"{row['ms']:.2f}", f"{row['floor_ms']:.2f}", f"{row['expected_ms']:.2f}" if "expected_ms" in row else "",
         f"{above:.2f}"] for above, case, row in sorted(found, key=lambda entry: -entry[0])[:n]])


def summary(context, records):
    gpu, commit = context.report["gpu"], context.report["version"]["commit"]
    libraries = ", ".join(f"{name} {library['version']}" for name, library in gpu["libraries"].items())
    rows = [[item.name, record["status"] + ("" if record["commit"] == commit else f" ({record['commit'][:8]})"), f"{record['seconds']:.0f}",
             record["text"].replace("|", "\\|").replace("\n", "<br>")]
            for item in items_of(context) for record in [records.get(item.name)] if record]
    return (f"# Quick check on {gpu['name']}\n\n{counts_of(records)}. Driver {gpu['driver']}, {libraries}, {gpu['nccl']}. "
            f"Lockstep {commit}.\n\n## Figures\n\n{table_of_figures(context, records)}\n{EXPECTATIONS['derivation']}\n\n"
            f"## Classes of kernels that are furthest above their floor\n\n{table_of_classes(records)}\n"
            f"## Checks\n\n{harness.table(['', '', 'seconds', ''], rows)}")


def selected(context):
    return [item for item in items_of(context) if re.search(context.args.only, item.name)]


def quick(context):
    """Runs the checks that have no result yet; returns the exit status."""
    context.folder = context.results / "quick"
    context.lines = context.folder / "results.jsonl"
    context.folder.mkdir(parents=True, exist_ok=True)
    if context.args.fresh:
        context.lines.unlink(missing_ok=True)
    records, items = records_of(context), selected(context)
    try:
        reason = run_items([item for item in items if not is_done(item, context, records)], context, records)
    except (DeviceLost, SystemExit) as why:
        reason = str(why)
    left = [item for item in items if not is_done(item, context, records)]
    page = summary(context, records)
    (context.folder / "summary.md").write_text(page)
    print(f"{page}\n{context.folder / 'summary.md'}")
    if left:
        print(f"{reason or 'some figures were rejected'}; rerun the command for the {len(left)} checks that are left")
        return EXIT_UNFINISHED
    return int(any(records[item.name]["status"] in (FAILED, REJECTED) for item in items))
