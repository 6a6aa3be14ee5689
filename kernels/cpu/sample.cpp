// Drawing tokens (lockstep/ops/sample.h): threads divide the sequences, and select by digits of 11 bits.
#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <vector>

#include "kernels/cpu/base/parallel.h"
#include "lockstep/ops/sample.h"

namespace lockstep::cpu {
namespace {

constexpr int kDigitBits = 11;

/// sampling::draw() explains it.
template <typename KeyOf, typename Weigh, typename Goal>
std::uint64_t select(std::int64_t n, const KeyOf& key_of, int bits, const Weigh& weigh, const Goal& goal) {
  std::uint64_t key = 0, before = 0, sought = 0;  // the digits found so far, and the weights before them
  thread_local std::vector<std::int64_t> left;    // the tokens whose keys begin with these digits
  left.clear();
  for (int done = 0; done < bits; done += kDigitBits) {
    const int width = std::min(kDigitBits, bits - done), shift = bits - done - width;
    std::array<std::uint64_t, 1 << kDigitBits> sums{};
    const auto add = [&](std::int64_t i) { sums[key_of(i) >> shift & ((std::uint64_t{1} << width) - 1)] += weigh(i); };
    if (done > 0) std::ranges::for_each(left, add);
    for (std::int64_t i = 0; done == 0 && i < n; ++i) add(i);
    if (done == 0) {
      for (const std::uint64_t sum : sums) sought += sum;
      sought = goal(sought);
    }
    std::uint64_t digit = 0;
    while (before + sums[digit] <= sought) before += sums[digit++];
    key = key << width | digit;
    if (done > 0) std::erase_if(left, [&](std::int64_t i) { return key_of(i) >> shift != key; });
    for (std::int64_t i = 0; done == 0 && i < n; ++i)
      if (key_of(i) >> shift == key) left.push_back(i);
  }
  return key;
}

void sample(const SampleDescription& d, const Sample::Forward& args, std::int64_t sequence) {
  const SampledSequence& s = args.sequences[sequence];
  if (s.row < 0) return;
  const SamplingOptions& options = args.settings->options;
  const sampling::Logits logits(args, d, sequence);
  float greatest = -INFINITY;
  bool has_nan = false;
  std::uint64_t best = 0;
  for (std::int64_t i = 0; i < d.vocabulary; ++i) {
    greatest = std::max(greatest, logits.logits[i]);
    has_nan = has_nan || std::isnan(logits.logits[i]);
    best = std::max(best, logits.rank(i));
  }
  std::int32_t id = sampling::Logits::token_of(best);
  const float most = logits[id];
  if (has_nan || !std::isfinite(greatest) || !std::isfinite(most)) return sampling::finish(args, d, sequence, -1, 0);
  double sum = 0;
  for (std::int64_t i = 0; i < d.vocabulary; ++i)
    sum += static_cast<double>(sampling::weight_of(logits.logits[i] - greatest));
  if (!options.is_greedy())
    id = sampling::draw(options, logits, most, d.vocabulary, sampling::uniform_of(s, args.settings->seed),
                        [&](const auto& key_of, int bits, const auto& weigh, const auto& goal) {
                          return select(d.vocabulary, key_of, bits, weigh, goal);
                        });
  sampling::finish(args, d, sequence, id, double{greatest} + std::log(std::ldexp(sum, -sampling::kWeightBits)));
}

class CpuSample final : public CpuOp<SampleDescription> {
 public:
  using PlannedOp::PlannedOp;

  std::string describe() const override { return "own kernel, one thread for each sequence"; }
  void run_forward(const Forward& args, const OpMemory&, Stream&) override {
    const auto parts = static_cast<int>(std::min<std::int64_t>(std::max(1, context_.threads), d_.sequences));
    run_ranges(parts, d_.sequences, [&](Range sequences) {
      for (std::int64_t i = sequences.begin; i < sequences.end; ++i) sample(d_, args, i);
    });
  }
};

}  // namespace

std::unique_ptr<Sample> make_sample(const SampleDescription& d, const CpuContext& context) {
  return std::make_unique<CpuSample>(d, context);
}

}  // namespace lockstep::cpu
