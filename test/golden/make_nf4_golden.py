"""Makes nf4.json: python make_nf4_golden.py (torch, bitsandbytes' build for CPUs).

What quantize_4bit(quant_type="nf4", compress_statistics=True) of bitsandbytes makes of matrices of normal numbers
(philox.py), on one thread: hashes of the codes, of the scale codes, of the scales of scales and of what
dequantize_4bit() makes of them in fp32 and bf16 (xxh3 of the little-endian numbers), and the offset. One matrix has
rows that do not end with a block, one has some zeros, one more than 256 blocks. `values` is the hash of the values of
the 8-bit scales.
"""
import json
import pathlib

import bitsandbytes.functional as F
import numpy as np
import torch
import xxhash

import philox

CASES = [(1, 1, "fp32"), (5, 13, "fp32"), (33, 17, "bf16"), (64, 64, "fp32"), (50, 56, "bf16"), (96, 576, "bf16"),
         (1, 100, "fp32"), (576, 192, "fp32")]


def digest(array):
    return xxhash.xxh3_64_hexdigest(np.ascontiguousarray(array).tobytes())


def main():
    torch.set_num_threads(1)
    cases = []
    for number, (rows, columns, dtype) in enumerate(CASES):
        values = (0.05 * philox.normal(1, philox.WEIGHTS, number, rows * columns)).astype(np.float32)
        if number == 3:
            values[:70] = 0
        weight = torch.tensor(values).reshape(rows, columns)
        if dtype == "bf16":
            weight = weight.to(torch.bfloat16)
        codes, state = F.quantize_4bit(weight, blocksize=64, quant_type="nf4", compress_statistics=True)
        expanded = F.dequantize_4bit(codes, state).float()
        cases.append(dict(rows=rows, columns=columns, dtype=dtype, codes=digest(codes.numpy()),
                          scale_codes=digest(state.absmax.numpy()), scales_of_scales=digest(state.state2.absmax.numpy()),
                          offset=state.offset.item(), expanded=digest(expanded.numpy())))
    path = pathlib.Path(__file__).parent / "nf4.json"
    path.write_text(json.dumps(dict(values=digest(F.create_dynamic_map().numpy()), cases=cases), indent=1) + "\n")
    print(path, path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
