// The device's hash of memory (lockstep/ops/hash.h): with words w_i of 8 little-endian bytes, the last one padded with
// zeros,
//     hash = mix(size_bytes * g + sum_i mix(w_i + (i + 1) * g))     modulo 2^64, g = 2^64 / golden ratio
// and mix the finalizer of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014,
// figure 15), a bijection in which each input bit changes half of the output bits. The sum is of integers, so its order
// and the grid do not matter, and two memories that differ in one word always have different hashes. xxh3, which the
// cpu backend uses, is a chain over all memory: a device would compute it on one thread.
//
// Bytes moved: each is read once; no kernel can move less.
#include <memory>

#include "kernels/cuda/base/block_sum.h"
#include "kernels/cuda/base/context.h"
#include "kernels/cuda/base/numbers.h"
#include "lockstep/ops/hash.h"

namespace lockstep::cuda {
namespace {

constexpr unsigned kThreads = 256;
constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15u;

__device__ inline std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

/// The term of word i.
__device__ inline std::uint64_t term(std::uint64_t word, std::size_t i) { return mix(word + (i + 1) * kGolden); }

/// Adds up the terms of the words. The first `n_pairs` pairs of words are read 16 bytes at a time.
__global__ void __launch_bounds__(kThreads)
    hash_words(const unsigned char* data, std::size_t size_bytes, std::size_t n_pairs, std::uint64_t* sums) {
  const std::size_t stride = std::size_t{gridDim.x} * blockDim.x;
  const std::size_t first = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  std::uint64_t sum = 0;
  for (std::size_t i = first; i < n_pairs; i += stride) {
    const Pack<std::uint64_t> words = load_pack(reinterpret_cast<const std::uint64_t*>(data) + 2 * i);
    sum += term(words.values[0], 2 * i) + term(words.values[1], 2 * i + 1);
  }
  for (std::size_t i = 2 * n_pairs + first; 8 * i < size_bytes; i += stride) {
    std::uint64_t word = 0;
    for (std::size_t byte = 0; byte < 8 && 8 * i + byte < size_bytes; ++byte)
      word |= std::uint64_t{data[8 * i + byte]} << (8 * byte);
    sum += term(word, i);
  }
  sum = block_sum<kThreads>(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kThreads)
    finish_hash(const std::uint64_t* sums, unsigned n_sums, std::size_t size_bytes, std::uint64_t* hash) {
  std::uint64_t sum = 0;
  for (unsigned i = threadIdx.x; i < n_sums; i += kThreads) sum += sums[i];
  sum = block_sum<kThreads>(sum);
  if (threadIdx.x == 0) *hash = mix(size_bytes * kGolden + sum);
}

class CudaHash final : public CudaOp<HashDescription> {
 public:
  CudaHash(const HashDescription& d, const CudaContext& context)
      : PlannedOp(d, context), blocks_(blocks_for((d.size_bytes + 15) / 16, kThreads, context.blocks(8))) {}

  OpMemoryRequirements memory_requirements() const override {
    return {.forward_workspace_bytes = blocks_ * sizeof(std::uint64_t)};
  }
  std::string describe() const override { return "own kernels: sum of mixed words, 64 bits"; }

  void run_apply(const Apply& args, const OpMemory& memory, Stream& stream) override {
    auto* sums = static_cast<std::uint64_t*>(memory.workspace);
    const std::size_t n_pairs = are_aligned(args.data) ? d_.size_bytes / 16 : 0;
    launch(hash_words, {.blocks = blocks_, .threads = kThreads}, stream, static_cast<const unsigned char*>(args.data),
           d_.size_bytes, n_pairs, sums);
    launch(finish_hash, {.threads = kThreads}, stream, sums, blocks_, d_.size_bytes, args.hash);
  }

 private:
  unsigned blocks_;
};

}  // namespace

std::unique_ptr<Hash> make_hash(const HashDescription& d, const CudaContext& context) {
  return std::make_unique<CudaHash>(d, context);
}

}  // namespace lockstep::cuda
