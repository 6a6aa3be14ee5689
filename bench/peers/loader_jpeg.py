"""Compares the loading of JPEG images with PyTorch's DataLoader: one reader thread with one worker process.

    python3 bench/peers/loader_jpeg.py --python PYTHON [--photos FOLDER] [--pillow-simd PYTHON] [--ffcv PYTHON]

FOLDER contains photographs, of which mosaics of 500x375 pixels with quality 90 are made; without it, images are generated.
All sides take random crops and resize them to 224x224. The DataLoader uses torchvision's decoder, Pillow, and, with
--pillow-simd, an interpreter that has Pillow-SIMD in the place of Pillow (CC="cc -mavx2" pip install pillow-simd). --ffcv
names an interpreter that has FFCV (loader_ffcv.py). All run in each round, one after the other. Takes some minutes.
"""
import argparse
import json
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import harness  # noqa: E402

PEER = pathlib.Path(__file__).resolve().parent / "loader_jpeg_peer.py"
FFCV = pathlib.Path(__file__).resolve().parent / "loader_ffcv.py"


def ours(build, path):
    name = "loader/file/resized_crop/process_time/real_time"
    out = harness.run([pathlib.Path(build).resolve() / "bench/micro/loader", path, f"--benchmark_filter=^{name}$",
                       "--benchmark_format=json", "--benchmark_min_time=2"], "bench/micro/loader")
    (found,) = json.loads(out)["benchmarks"]
    per_batch = {"ns": 1e-6, "us": 1e-3, "ms": 1}[found["time_unit"]] * found["cpu_time"]
    batch = found["items_per_second"] * found["real_time"] * {"ns": 1e-9, "us": 1e-6, "ms": 1e-3}[found["time_unit"]]
    return {"images_per_second": found["items_per_second"], "processor_ms": per_batch / batch}


def theirs(python, *arguments, program=PEER):
    return json.loads(harness.run([python, program, *arguments], program.name, env=harness.environment(1)).splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=pathlib.Path, help="folder of JPEG files, with folders in it or not")
    parser.add_argument("--build", default="build", help="folder with the program lockstep and the benchmarks")
    parser.add_argument("--python", default="python3", help="interpreter with torch, torchvision and Pillow")
    parser.add_argument("--pillow-simd", help="interpreter with torch, torchvision and Pillow-SIMD")
    parser.add_argument("--ffcv", help="interpreter with FFCV")
    parser.add_argument("--images", type=int, default=1000, help="images of a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--name", default="loader_jpeg", help="name of the result files")
    parser.add_argument("--results", default=str(harness.RESULTS), help="folder for the result files")
    args = parser.parse_args()
    binary = harness.lockstep(args.build)
    sides = {"torchvision's decoder": (args.python, "torchvision"), "Pillow": (args.python, "pillow")}
    if args.pillow_simd:
        sides["Pillow-SIMD"] = (args.pillow_simd, "pillow")
    for side, (python, decoder) in sides.items():
        found, reason = harness.torch_python(python)
        if not found:
            harness.stop(reason)
        sides[side] = (found, decoder)
    dataloaders = list(sides)
    machine = harness.machine()
    rounds = []
    with harness.scratch() as directory:
        folder, path = pathlib.Path(directory) / "images", pathlib.Path(directory) / "images.h5"
        made = theirs(sides["Pillow"][0], "make", args.photos.resolve() if args.photos else "generated",
                      folder, args.images)
        harness.run([binary, "data", "import", "imagefolder", folder, path, "--store", "jpeg"], "lockstep data import")
        beton = pathlib.Path(directory) / "images.beton"
        if args.ffcv:
            made["ffcv_bytes"] = theirs(args.ffcv, "write", folder, beton, program=FFCV)["bytes"]
        for _ in range(args.rounds):
            rounds.append({"Lockstep": ours(args.build, path),
                           **{side: theirs(python, "run", folder, decoder) for side, (python, decoder) in sides.items()}})
            if args.ffcv:
                rounds[-1]["FFCV"] = theirs(args.ffcv, "run", beton, program=FFCV)

    def values(side, key):
        return [one[side][key] for one in rounds]

    fastest = max(dataloaders, key=lambda side: statistics.median(values(side, "images_per_second")))
    rows = []
    for side in rounds[0]:
        rates, times = values(side, "images_per_second"), values(side, "processor_ms")
        ratios = sorted(ours / rate for ours, rate in zip(values("Lockstep", "images_per_second"), rates))
        version = rounds[0][side].get({"torchvision's decoder": "torchvision", "FFCV": "ffcv"}.get(side, "pillow"), "")
        rows.append([f"{side} {version}".strip(), f"{statistics.median(rates):,.0f}", f"{100 * harness.spread(rates):.0f}",
                     f"{statistics.median(times):.2f}", f"{min(times):.2f}",
                     f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"])
    ffcv = (f"FFCV's file has the same images, encoded again with quality 90, {made['ffcv_bytes'] / 1000:.0f} kB on average; one "
            "worker thread, after an epoch that compiles its functions.\n" if args.ffcv else "")
    text = (f"{args.images} JPEG images of 500x375 pixels ({made['source']}), quality 90, {made['bytes'] / 1000:.0f} kB on average; "
            f"random crops resized to 224x224, batches of 32.\n{ffcv}One reader thread, and PyTorch {rounds[0]['Pillow']['torch']}'s "
            f"DataLoader with one worker; medians of {args.rounds} rounds. The processor time is that of all threads and "
            f"processes.\nThe fastest DataLoader is that with {fastest}.\n\n"
            + harness.table(["", "images/s", "spread, %", "processor time per image, ms", "shortest, ms",
                             "Lockstep's images/s : this row's (single rounds)"], rows))
    ratio = statistics.median(ours / rate for ours, rate in zip(values("Lockstep", "images_per_second"),
                                                                values(fastest, "images_per_second")))
    harness.write_results(args.name, "Loading of JPEG images compared with PyTorch", text,
                          {"machine": machine, "version": harness.version(binary), "images": made, "fastest": fastest,
                           "speed_ratio": ratio, "rounds": rounds}, args.results)


if __name__ == "__main__":
    main()
