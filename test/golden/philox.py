"""The random numbers of include/lockstep/philox.h, in numpy, so that both languages get the same initial weights."""
import numpy as np

WEIGHTS = 1


def philox4x32(counter, key):
    """counter: four uint32 arrays; key: two ints. Returns four uint32 arrays."""
    c = [np.asarray(x, dtype=np.uint64) for x in counter]
    k = [int(key[0]), int(key[1])]
    mask = np.uint64(0xFFFFFFFF)
    for _ in range(10):
        p0 = np.uint64(0xD2511F53) * c[0]
        p1 = np.uint64(0xCD9E8D57) * c[2]
        c = [(p1 >> np.uint64(32)) ^ c[1] ^ np.uint64(k[0]), p1 & mask,
             (p0 >> np.uint64(32)) ^ c[3] ^ np.uint64(k[1]), p0 & mask]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def name_hash(name):
    h = 2166136261
    for byte in name.encode():
        h = ((h ^ byte) * 16777619) & 0xFFFFFFFF
    return h


def _uniforms(seed, purpose, stream, n):
    blocks = (n + 1) // 2
    index = np.arange(blocks, dtype=np.uint64)
    fill = lambda value: np.full(blocks, value, dtype=np.uint64)
    b = philox4x32([index, fill(0), fill(stream), fill(0)], (seed, purpose))
    def pair(high, low):
        return ((high >> np.uint64(5)).astype(np.float64) * 67108864.0
                + (low >> np.uint64(6)).astype(np.float64) + 0.5) / 9007199254740992.0
    return pair(b[0], b[1]), pair(b[2], b[3])


def uniform(seed, purpose, stream, n):
    out = np.empty(2 * ((n + 1) // 2))
    out[0::2], out[1::2] = _uniforms(seed, purpose, stream, n)
    return out[:n]


def normal(seed, purpose, stream, n):
    u0, u1 = _uniforms(seed, purpose, stream, n)
    radius, angle = np.sqrt(-2.0 * np.log(u0)), 6.283185307179586476925286766559 * u1
    out = np.empty(2 * len(u0))
    out[0::2], out[1::2] = radius * np.cos(angle), radius * np.sin(angle)
    return out[:n]


def initial_weights(name, shape, seed):
    """As in src/graph/parameters.cpp and torchvision: fp32, computed in double and rounded once."""
    n = int(np.prod(shape))
    if name.startswith("fc."):
        bound = 1.0 / np.sqrt(float(shape[1] if len(shape) == 2 else initial_weights.fc_inputs))
        values = bound * (2.0 * uniform(seed, WEIGHTS, name_hash(name), n) - 1.0)
    elif len(shape) == 4:
        values = np.sqrt(2.0 / (shape[0] * shape[2] * shape[3])) * normal(seed, WEIGHTS, name_hash(name), n)
    else:
        values = np.full(n, 1.0 if name.endswith("weight") else 0.0)
    return values.astype(np.float32).reshape(shape)
