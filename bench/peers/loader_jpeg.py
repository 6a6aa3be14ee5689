"""Compares the loading of JPEG images with PyTorch's DataLoader: one reader thread with one worker process.

    python3 bench/peers/loader_jpeg.py --python PYTHON [--photos FOLDER] [--pillow-simd PYTHON] [--ffcv PYTHON]

FOLDER contains photographs, of which mosaics of 500x375 pixels with quality 90 are made; without it, images are generated.
All sides take random crops and resize them to 224x224. The DataLoader uses torchvision's decoder, Pillow, and, with
--pillow-simd, an interpreter that has Pillow-SIMD in the place of Pillow (CC="cc -mavx2" pip install pillow-simd). --ffcv
names an interpreter that has FFCV (loader_jpeg_peer.py). All run in each round, one after the other. Takes some minutes.
"""
import json
import pathlib
import statistics
import sys

sys.path.insert(0, sys.path[0] + "/..")
import harness  # noqa: E402

def ours(build, path):
    name = "loader/file/resized_crop/process_time/real_time"
    (found,) = harness.micro(build, "loader", path, f"--benchmark_filter=^{name}$", seconds=2)["benchmarks"]
    batch = found["items_per_second"] * found["real_time"]
    return {"images_per_second": found["items_per_second"], "processor_ms": 1e3 * found["cpu_time"] / batch}


def theirs(python, *arguments):
    program = harness.ROOT / "bench/peers/loader_jpeg_peer.py"
    return json.loads(harness.run([python, program, *arguments], program.name, env=harness.environment(1)).splitlines()[-1])


def main():
    parser = harness.parser(__doc__, name="loader_jpeg", python="torch, torchvision and Pillow", rounds=3)
    parser.add_argument("--photos", type=pathlib.Path, help="folder of JPEG files, with folders in it or not")
    parser.add_argument("--pillow-simd", help="interpreter with torch, torchvision and Pillow-SIMD")
    parser.add_argument("--ffcv", help="interpreter with FFCV")
    parser.add_argument("--images", type=int, default=1000, help="images of a round")
    args = harness.begin(parser)
    sides = {"torchvision's decoder": (args.python, "torchvision"), "Pillow": (args.python, "pillow")}
    if args.pillow_simd:
        sides["Pillow-SIMD"] = (args.pillow_simd, "pillow")
    for side, (python, decoder) in sides.items():
        found, reason = harness.torch_python(python)
        if not found:
            harness.stop(reason)
        sides[side] = (found, decoder)
    dataloaders = list(sides)
    with harness.scratch() as directory:
        folder, path = pathlib.Path(directory) / "images", pathlib.Path(directory) / "images.h5"
        made = theirs(sides["Pillow"][0], "make", args.photos.resolve() if args.photos else "generated",
                      folder, args.images)
        harness.run([args.binary, "data", "import", "imagefolder", folder, path, "--store", "jpeg"], "lockstep data import")
        beton = pathlib.Path(directory) / "images.beton"
        if args.ffcv:
            made["ffcv_bytes"] = theirs(args.ffcv, "write_ffcv", folder, beton)["bytes"]
        runs = {"Lockstep": lambda: ours(args.build, path),
                **{side: lambda one=one: theirs(one[0], "run", folder, one[1]) for side, one in sides.items()},
                **({"FFCV": lambda: theirs(args.ffcv, "run_ffcv", beton)} if args.ffcv else {})}
        rounds = harness.run_rounds(args.rounds, runs)

    def values(side, key):
        return [one[key] for one in rounds[side]]

    fastest = max(dataloaders, key=lambda side: statistics.median(values(side, "images_per_second")))
    rows = []
    for side in rounds:
        rates, times = values(side, "images_per_second"), values(side, "processor_ms")
        ratio, least, most = harness.ratios(values("Lockstep", "images_per_second"), rates)
        version = rounds[side][0].get({"torchvision's decoder": "torchvision", "FFCV": "ffcv"}.get(side, "pillow"), "")
        rows.append([f"{side} {version}".strip(), f"{statistics.median(rates):,.0f}", f"{100 * harness.spread(rates):.0f}",
                     f"{statistics.median(times):.2f}", f"{min(times):.2f}",
                     f"{ratio:.2f} ({least:.2f} to {most:.2f})"])
    ffcv = (f"FFCV's file has the same images, encoded again with quality 90, {made['ffcv_bytes'] / 1000:.0f} kB on average; one "
            "worker thread, after an epoch that compiles its functions.\n" if args.ffcv else "")
    text = (f"{args.images} JPEG images of 500x375 pixels ({made['source']}), quality 90, {made['bytes'] / 1000:.0f} kB on average; "
            f"random crops resized to 224x224, batches of 32.\n{ffcv}One reader thread, and PyTorch {rounds['Pillow'][0]['torch']}'s "
            f"DataLoader with one worker; medians of {args.rounds} rounds. The processor time is that of all threads and "
            f"processes.\nThe fastest DataLoader is that with {fastest}.\n\n"
            + harness.table(["", "images/s", "spread, %", "processor time per image, ms", "shortest, ms",
                             "Lockstep's images/s : this row's (single rounds)"], rows))
    ratio, *_ = harness.ratios(values("Lockstep", "images_per_second"), values(fastest, "images_per_second"))
    harness.finish(args, "Loading of JPEG images compared with PyTorch", text, images=made, fastest=fastest, speed_ratio=ratio,
                   rounds=rounds)


if __name__ == "__main__":
    main()
