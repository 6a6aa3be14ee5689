// Drawing tokens (lockstep/ops/sample.h), in one launch. Several blocks find the greatest logit of a sequence and the
// sum of the exponentials, and the last of them to finish draws the token: it selects by digits of 11 bits, with one
// pass over the logits per digit. Greedy decoding needs no such pass, sampling without filters needs two. Logits are
// read from the L2 cache, where the matrix product has left them.
#include <cmath>
#include <memory>

#include "kernels/cuda/base/block_sum.h"
#include "kernels/cuda/base/context.h"
#include "lockstep/ops/sample.h"
#include "lockstep/workspace.h"

namespace lockstep::cuda {
namespace {

constexpr unsigned kThreads = 1024;
constexpr std::int64_t kPart = 4 * kThreads;  // logits of a block, at least
constexpr unsigned kMostParts = 64;
constexpr int kDigitBits = 11, kDigits = 1 << kDigitBits, kGroup = 32;

/// What a block found in its part of the logits.
struct Part {
  std::uint64_t best = 0;  // Logits::rank()
  double sum = 0;          // of weight_of(l - greatest)
  float greatest = 0;
  bool has_nan = false;
};

/// The shared memory of select().
struct Digits {
  unsigned long long sums[kDigits], of_groups[kDigits / kGroup], found;
};

/// sampling::draw() explains it. All threads of the block get the result.
template <typename KeyOf, typename Weigh, typename Goal>
__device__ std::uint64_t select(Digits& digits, std::int64_t n, const KeyOf& key_of, int bits, const Weigh& weigh,
                                const Goal& goal) {
  auto& [sums, of_groups, found] = digits;
  std::uint64_t key = 0, before = 0, sought = 0;
  for (int done = 0; done < bits; done += kDigitBits) {
    const int width = bits - done < kDigitBits ? bits - done : kDigitBits, shift = bits - done - width;
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < kDigits; i += static_cast<int>(kThreads)) sums[i] = 0;
    __syncthreads();
    for (std::int64_t i = threadIdx.x; i < n; i += kThreads) {
      const std::uint64_t given = key_of(i);
      if (given >> (shift + width) != key) continue;
      if (const std::uint64_t weight = weigh(i); weight > 0)
        atomicAdd(sums + (given >> shift & ((std::uint64_t{1} << width) - 1)), static_cast<unsigned long long>(weight));
    }
    __syncthreads();
    if (threadIdx.x < kDigits / kGroup) {
      std::uint64_t sum = 0;
      for (int i = 0; i < kGroup; ++i) sum += sums[static_cast<int>(threadIdx.x) * kGroup + i];
      of_groups[threadIdx.x] = sum;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      if (done == 0) {
        for (const std::uint64_t sum : of_groups) sought += sum;
        sought = goal(sought);
      }
      int digit = 0;
      while (before + of_groups[digit / kGroup] <= sought) {
        before += of_groups[digit / kGroup];
        digit += kGroup;
      }
      while (before + sums[digit] <= sought) before += sums[digit++];
      found = key << width | static_cast<std::uint64_t>(digit);
    }
    __syncthreads();
    key = found;
  }
  return key;
}

__global__ void __launch_bounds__(kThreads)
    sample(Sample::Forward args, SampleDescription d, std::int64_t part_size, Part* parts) {
  __shared__ bool is_last;
  [[maybe_unused]] __shared__ Digits digits;
  const std::int64_t sequence = blockIdx.y;
  SampledSequence& s = args.sequences[sequence];
  if (s.row < 0) return;
  const sampling::Logits logits(args, d, sequence);
  const std::int64_t begin = std::int64_t{blockIdx.x} * part_size;
  const std::int64_t end = begin + part_size < d.vocabulary ? begin + part_size : d.vocabulary;
  float greatest = -INFINITY;
  int n_nan = 0;
  std::uint64_t best = 0;
  for (std::int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    const float l = logits.logits[i];
    n_nan += l != l;
    greatest = l > greatest ? l : greatest;
    const std::uint64_t rank = logits.rank(i);
    best = rank > best ? rank : best;
  }
  greatest = block_max<kThreads>(greatest);
  best = block_max<kThreads>(best);
  n_nan = block_sum<kThreads>(n_nan);
  double sum = 0;
  for (std::int64_t i = begin + threadIdx.x; i < end; i += kThreads)
    sum += static_cast<double>(sampling::weight_of(logits.logits[i] - greatest));
  sum = block_sum<kThreads>(sum);
  Part* const of_sequence = parts + sequence * gridDim.x;
  if (threadIdx.x == 0) {
    of_sequence[blockIdx.x] = {best, sum, greatest, n_nan > 0};
    __threadfence();
    is_last = atomicAdd(&s.scratch, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  bool has_nan = false;
  for (unsigned i = 0; i < gridDim.x; ++i) {
    const Part& part = of_sequence[i];
    best = part.best > best ? part.best : best;
    greatest = part.greatest > greatest ? part.greatest : greatest;
    has_nan = has_nan || part.has_nan;
  }
  sum = 0;
  for (unsigned i = 0; i < gridDim.x; ++i)
    if (of_sequence[i].greatest > -INFINITY)
      sum += of_sequence[i].sum * exp(double{of_sequence[i].greatest} - greatest);
  std::int32_t id = sampling::Logits::token_of(best);
  const float most = sampling::from_ordered(static_cast<std::uint32_t>(best >> 32));
  if (has_nan || !(fabsf(greatest) < INFINITY) || !(fabsf(most) < INFINITY))
    id = -1;
  else if (!args.settings->options.is_greedy())
    id =
        sampling::draw(args.settings->options, logits, most, d.vocabulary, sampling::uniform_of(s, args.settings->seed),
                       [&](const auto& key_of, int bits, const auto& weigh, const auto& goal) {
                         return select(digits, d.vocabulary, key_of, bits, weigh, goal);
                       });
  __syncthreads();  // all threads have read what finish() changes
  if (threadIdx.x == 0)
    sampling::finish(args, d, sequence, id,
                     double{greatest} + log(sum / static_cast<double>(std::uint64_t{1} << sampling::kWeightBits)));
}

class CudaSample final : public CudaOp<SampleDescription> {
 public:
  CudaSample(const SampleDescription& d, const CudaContext& context)
      : PlannedOp(d, context), n_parts_(blocks_for(static_cast<std::size_t>(d.vocabulary), kPart, kMostParts)) {}

  OpMemoryRequirements memory_requirements() const override {
    return {.forward_workspace_bytes = static_cast<std::size_t>(d_.sequences) * n_parts_ * sizeof(Part)};
  }
  std::string describe() const override { return "own kernel, one launch"; }
  void run_forward(const Forward& args, const OpMemory& memory, Stream& stream) override {
    const std::int64_t part_size = (d_.vocabulary + n_parts_ - 1) / n_parts_;
    launch(sample,
           {.blocks = n_parts_,
            .threads = kThreads,
            .blocks_y = static_cast<unsigned>(d_.sequences),
            // Greedy: two passes over a part, and then what the parts have found, one after the other.
            .work = {.kind = "columns",
                     .bytes = moved_bytes(1, d_.sequences, d_.vocabulary, sizeof(float)),
                     .steps = static_cast<double>(2 * ((part_size + kThreads - 1) / kThreads) + 2 * n_parts_ + 4)}},
           stream, args, d_, part_size, static_cast<Part*>(memory.workspace));
  }

 private:
  unsigned n_parts_;
};

}  // namespace

std::unique_ptr<Sample> make_sample(const SampleDescription& d, const CudaContext& context) {
  require(d.sequences < 65536, ErrorCode::not_supported,
          "tokens of {} sequences at a time; on a GPU at most 65,535 are possible", d.sequences);
  return std::make_unique<CudaSample>(d, context);
}

}  // namespace lockstep::cuda
