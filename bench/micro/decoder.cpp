// The ops of a decoder other than the matmuls of its blocks: embedding, rotary positions, SwiGLU, attention when text
// is generated, and the last matmul with the loss. Also adapters of rank 8 added to the matmul for q, k and v, and the
// matmul for gate and up in NF4.
// Sizes are those of SmolLM-135M with one sample of 256 tokens. The last op of generation draws a token.
#include <cmath>
#include <numeric>
#include <vector>

#include "bench/micro/support.h"
#include "lockstep/ops/cached_attention.h"
#include "lockstep/ops/embedding.h"
#include "lockstep/ops/glu.h"
#include "lockstep/ops/linear_cross_entropy.h"
#include "lockstep/ops/lora.h"
#include "lockstep/ops/nf4_matmul.h"
#include "lockstep/ops/rotary.h"
#include "lockstep/ops/sample.h"

namespace lockstep::bench {
namespace {

constexpr std::int64_t kTokens = 256, kVocabulary = 49152, kWidth = 576, kHidden = 1536;
constexpr std::int64_t kHeads = 9, kKvHeads = 3, kHeadDim = 64;

/// Token ids, about as many different ones as in real text.
std::int32_t* make_ids(Arguments& arguments) {
  auto* const ids = arguments.make<std::int32_t>(kTokens);
  for (std::int64_t i = 0; i < kTokens; ++i)
    ids[i] = static_cast<std::int32_t>(i % 3 == 0 ? i % 40 : i * 7919 % kVocabulary);
  return ids;
}

void embedding(benchmark::State& state, GradientMode mode) {
  Planned p(EmbeddingDescription{.rows = kTokens, .vocabulary = kVocabulary, .width = kWidth, .dtype = dtype()});
  Arguments& arguments = p.arguments;
  const std::int32_t* const ids = make_ids(arguments);
  const double bytes = element_bytes() * static_cast<double>(kTokens * kWidth);
  if (mode == GradientMode::skip) {
    const Embedding::Forward args{
        .ids = ids, .weight = arguments.tensor(kVocabulary * kWidth), .y = arguments.tensor(kTokens * kWidth)};
    return measure(state, 0, 2 * bytes, [&] { p.op->forward(args, p.memory, *p.stream); });
  }
  const Embedding::Backward args{.ids = ids,
                                 .dy = arguments.tensor(kTokens * kWidth),
                                 .dweight = arguments.make(kVocabulary * kWidth),
                                 .dweight_mode = mode};
  const bool overwrites = mode == GradientMode::overwrite;
  measure(state, 0, bytes + kFloatBytes * static_cast<double>(overwrites ? kVocabulary * kWidth : 2 * kTokens * kWidth),
          [&] { p.op->backward(args, p.memory, *p.stream); });
}

PlannedBoth<RotaryDescription> rotary() {
  const RotaryDescription d{.rows = kTokens,
                            .heads = kHeads,
                            .kv_heads = kKvHeads,
                            .head_dim = kHeadDim,
                            .max_positions = kTokens,
                            .dtype = dtype()};
  PlannedBoth p(d);
  std::vector<double> frequencies;
  for (int i = 0; i < kHeadDim / 2; ++i) frequencies.push_back(std::pow(10000.0, -2.0 * i / kHeadDim));
  const std::vector<float> values = rotary_table(frequencies, 1, kTokens);
  auto* const table = p.arguments.make(static_cast<std::int64_t>(values.size()));
  std::ranges::copy(values, table);
  auto* const positions = p.arguments.make<std::int32_t>(kTokens);
  std::iota(positions, positions + kTokens, 0);
  const std::int64_t n = d.rows * d.row_size();
  const void* const in = p.arguments.tensor(n);
  void* const out = p.arguments.tensor(n);
  p.forward = {.x = in, .positions = positions, .table = table, .y = out};
  p.backward = {.dy = in, .positions = positions, .table = table, .dx = out};
  p.bytes = 2 * element_bytes() * static_cast<double>(n);
  return p;
}

PlannedBoth<GluDescription> swiglu() {
  PlannedBoth p(GluDescription{.rows = kTokens, .width = kHidden, .dtype = dtype()});
  const std::int64_t n = kTokens * kHidden;
  p.forward = {.x = p.arguments.tensor(2 * n), .y = p.arguments.tensor(n)};
  p.backward = {.x = p.forward.x, .dy = p.forward.y, .dx = p.arguments.tensor(2 * n)};
  p.bytes = 3 * element_bytes() * static_cast<double>(n);
  return p;
}

PlannedBoth<LoraDescription> lora(double dropout) {
  const LoraDescription d{.rows = kTokens,
                          .in_features = kWidth,
                          .out_features = kWidth + 2 * kKvHeads * kHeadDim,
                          .rank = 8,
                          .parts = {{0, kWidth, 1}, {kWidth, 192, 2}, {kWidth + 192, 192, 3}},
                          .scale = 2,
                          .dtype = dtype(),
                          .dropout = dropout,
                          .tokens = kTokens};
  PlannedBoth p(d);
  Arguments& arguments = p.arguments;
  const Lora::Samples samples{.ids = arguments.value(std::uint32_t{1}), .scalars = arguments.value(StepScalars{})};
  p.forward = {.x = arguments.tensor(kTokens * kWidth),
               .a = arguments.tensor(d.ranks() * kWidth),
               .b = arguments.tensor(d.columns() * d.rank),
               .y = arguments.tensor(kTokens * d.out_features),
               .samples = samples};
  p.backward = {.dy = p.forward.y,
                .x = p.forward.x,
                .a = p.forward.a,
                .b = p.forward.b,
                .dx = arguments.tensor(kTokens * kWidth),
                .da = arguments.make(d.ranks() * kWidth),
                .db = arguments.make(d.columns() * d.rank),
                .samples = samples};
  p.flops = 2.0 * static_cast<double>(kTokens * d.rank * (3 * kWidth + d.columns()));
  p.bytes = element_bytes() * static_cast<double>(kTokens * (kWidth + 2 * d.out_features));
  return p;
}

PlannedBoth<Nf4MatmulDescription> nf4_matmul() {
  const Nf4MatmulDescription d{
      .rows = kTokens, .in_features = kWidth, .matrices = {kHidden, kHidden}, .dtype = dtype()};
  PlannedBoth p(d);
  const Nf4Layout layout = Nf4Layout::of(d.matrices, kWidth);
  const auto* const weight = static_cast<const std::byte*>(p.arguments.bytes(layout.size_bytes));
  const float* const scales = p.arguments.make(kNf4ScaleValues);
  void *const x = p.arguments.tensor(kTokens * kWidth), *const y = p.arguments.tensor(2 * kTokens * kHidden);
  p.forward = {.x = x, .weight = weight, .scale_values = scales, .y = y};
  p.backward = {.dy = y, .weight = weight, .scale_values = scales, .dx = x};
  p.flops = 4.0 * static_cast<double>(kTokens * kWidth * kHidden);
  p.bytes = static_cast<double>(layout.size_bytes);
  return p;
}

void head(benchmark::State& state, bool is_inference) {
  Planned p(LinearCrossEntropyDescription{
      .rows = kTokens, .width = kWidth, .vocabulary = kVocabulary, .dtype = dtype(), .inference = is_inference});
  Arguments& arguments = p.arguments;
  const LinearCrossEntropy::Forward args{.x = arguments.tensor(kTokens * kWidth),
                                         .weight = arguments.tensor(kVocabulary * kWidth),
                                         .targets = make_ids(arguments),
                                         .sums = arguments.value(LossSums{}),
                                         .scalars = arguments.value(StepScalars{.loss_weight = 1.0f / kTokens}),
                                         .dx = arguments.tensor(kTokens * kWidth),
                                         .dweight = arguments.make(kVocabulary * kWidth)};
  const double product = 2.0 * static_cast<double>(kTokens) * kWidth * kVocabulary;
  measure(state, (is_inference ? 1 : 3) * product,
          (element_bytes() + (is_inference ? 0 : kFloatBytes)) * static_cast<double>(kVocabulary * kWidth),
          [&] { p.op->forward(args, p.memory, *p.stream); });
}

/// The last tokens of four sequences of 4,096, with the heads of Gemma 3 270M.
void cached_attention(benchmark::State& state, std::int64_t window) {
  constexpr std::int64_t kSequences = 4, kLength = 4096, kWide = 256;
  const CachedAttentionDescription d{.rows = kSequences,
                                     .slots = kSequences,
                                     .capacity = kLength,
                                     .heads = 4,
                                     .kv_heads = 1,
                                     .head_dim = kWide,
                                     .dtype = dtype(),
                                     .window = window};
  Planned p(d);
  auto* const slot = p.arguments.make<std::int32_t>(kSequences);
  auto* const position = p.arguments.make<std::int32_t>(kSequences);
  auto* const indirection = p.arguments.make<std::int32_t>(kSequences * kLength);
  for (std::int32_t i = 0; i < kSequences; ++i) {
    slot[i] = i;
    position[i] = kLength - 1;
    std::fill_n(indirection + i * kLength, kLength, i);
  }
  const CachedAttention::Forward args{.qkv = p.arguments.tensor(kSequences * d.packed_width()),
                                      .slot = slot,
                                      .position = position,
                                      .cache_indirection = indirection,
                                      .cache = p.arguments.tensor(2 * d.cached_elements()),
                                      .y = p.arguments.tensor(kSequences * d.heads * kWide)};
  const auto keys = static_cast<double>(kSequences * kWide * (window > 0 ? window : kLength));
  measure(state, 4 * 4 * keys, 2 * element_bytes() * keys, [&] { p.op->forward(args, p.memory, *p.stream); });
}

/// A token of one sequence.
void sample(benchmark::State& state, const SamplingOptions& options) {
  const SampleDescription d{.sequences = 1, .vocabulary = kVocabulary};
  Planned p(d);
  const Sample::Forward args{.logits = p.arguments.make(kVocabulary),
                             .settings = p.arguments.value(Sample::Settings{options, 1}),
                             .sequences = p.arguments.value(SampledSequence{.row = 0}),
                             .occurred = p.arguments.make<std::uint32_t>(d.occurred_words())};
  measure(state, 0, kFloatBytes * static_cast<double>(kVocabulary), [&] { p.op->forward(args, p.memory, *p.stream); });
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  using namespace lockstep;         // NOLINT
  using namespace lockstep::bench;  // NOLINT
  add("embedding/256x576/forward", [](benchmark::State& state) { embedding(state, GradientMode::skip); });
  add("embedding/256x576/accumulate", [](benchmark::State& state) { embedding(state, GradientMode::accumulate); });
  add("embedding/256x576/overwrite", [](benchmark::State& state) { embedding(state, GradientMode::overwrite); });
  add_both("rotary/256x960", rotary, 0, 1);
  add_both("swiglu/256x1536", swiglu, 0, 5.0 / 3);
  add_both(
      "lora/256x576-960", [] { return lora(0); }, 2, 1);
  add_both(
      "lora, dropout/256x576-960", [] { return lora(0.05); }, 2, 1);
  add_both("nf4_matmul/256x576-3072", nf4_matmul, 1, 1);
  for (const std::int64_t window : {0, 2048, 512, 128})
    add("cached_attention/4x4096x4x256" + (window > 0 ? "/window_" + std::to_string(window) : ""),
        [window](benchmark::State& state) { cached_attention(state, window); });
  add("sample/49152/greedy", [](benchmark::State& state) { sample(state, {}); });
  add("sample/49152/top_k_top_p",
      [](benchmark::State& state) { sample(state, {.temperature = 1, .top_k = 50, .top_p = 0.9}); });
  add("linear_cross_entropy/256x576-49152/gradients", [](benchmark::State& state) { head(state, false); });
  add("linear_cross_entropy/256x576-49152/inference", [](benchmark::State& state) { head(state, true); });
  return run_all(argc, argv);
}
