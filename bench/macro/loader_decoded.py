"""How fast does one core read decoded images? Samples per second of processor time, compared with the floor set by memory.

The images are 1,024 of 341x256 in the page cache (bench/micro/loader.cpp), 268 MB. Also with two readers on two cores.
"""
import sys

sys.path.insert(0, sys.path[0] + "/..")
import harness  # noqa: E402

REGIONS = {"resized_crop_224": "random crops for 224x224", "centre_224": "centre for 224x224 (resized to 256)",
           "centre_256": "centre of 256x256", "resized_crop_224/two_readers": "random crops for 224x224, two readers"}


def measure(build):
    """Per region: samples per second of real time and of processor time of all threads, and bytes per sample."""
    rows = {}
    for found in harness.micro(build, "loader", "--benchmark_filter=^loader/pixels/", seconds=1)["benchmarks"]:
        region = found["name"].removeprefix("loader/pixels/341x256/").removesuffix("/process_time/real_time")
        batch = found["items_per_second"] * found["real_time"]
        # The copy bandwidth: bytes read plus bytes written per second, as measured by bench/micro/limits.h.
        copy = 1e9 * found["GB/s"] / (found["% of copy"] / 100)
        rows[region] = {"samples_per_second": found["items_per_second"], "kb_per_sample": found["kB of a sample"],
                        "samples_per_processor_second": batch / found["cpu_time"],
                        "floor_samples_per_second": copy / (2e3 * found["kB of a sample"])}
    return rows


def main():
    args = harness.begin(harness.parser(__doc__, name="loader_decoded", rounds=3))
    rounds = [measure(args.build) for _ in range(args.rounds)]
    cells, medians = [], {}
    for region, title in REGIONS.items():
        row = {key: harness.median([one[region] for one in rounds], key) for key in rounds[0][region]}
        medians[region] = row
        cells.append([title, f"{row['kb_per_sample']:.0f}", f"{row['samples_per_processor_second']:,.0f}",
                      f"{row['samples_per_second']:,.0f}", f"{row['floor_samples_per_second']:,.0f}"])
    busy = (f"The machine was busy (load {args.machine['load_before']} on {args.machine['processors']} processors), so the samples per "
            "second of real time are lower bounds.\n" if args.machine["load_before"] > 0.5 else "")
    text = (f"1,024 decoded images of 341x256 in the page cache, batches of 32, one reader thread; medians of {args.rounds} rounds.\n"
            "Per core: per second of processor time of all threads. The floor: reading and writing the bytes of a sample once, "
            f"as fast as memcpy\ncopied 128 MiB in the same run.\n{busy}\n"
            + harness.table(["region", "kB per sample", "samples/s per core", "samples/s of real time", "floor, samples/s"], cells))
    harness.finish(args, "Loading of decoded images", text, medians=medians, rounds=rounds)


if __name__ == "__main__":
    main()
