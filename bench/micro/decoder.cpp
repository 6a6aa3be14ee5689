// The ops of a decoder other than the matmuls of its blocks: embedding, rotary positions, SwiGLU, and the last matmul
// with the loss. Also adapters of rank 8 added to the matmul for q, k and v, and the matmul for gate and up in NF4.
// Sizes are those of SmolLM-135M with one sample of 256 tokens.
#include <cmath>
#include <vector>

#include "bench/micro/support.h"
#include "lockstep/ops/embedding.h"
#include "lockstep/ops/linear_cross_entropy.h"
#include "lockstep/ops/lora.h"
#include "lockstep/ops/nf4_matmul.h"
#include "lockstep/ops/rotary.h"
#include "lockstep/ops/swiglu.h"

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
  Arguments arguments;
  const auto op = backend().make(
      EmbeddingDescription{.rows = kTokens, .vocabulary = kVocabulary, .width = kWidth, .dtype = dtype()});
  const OpMemory memory = arguments.memory_of(*op);
  const auto stream = backend().make_stream();
  const std::int32_t* const ids = make_ids(arguments);
  const double bytes = element_bytes() * static_cast<double>(kTokens * kWidth);
  if (mode == GradientMode::skip) {
    const Embedding::Forward args{
        .ids = ids, .weight = arguments.tensor(kVocabulary * kWidth), .y = arguments.tensor(kTokens * kWidth)};
    return measure(
        state, [&] { op->forward(args, memory, *stream); }, 0, 2 * bytes);
  }
  const Embedding::Backward args{.ids = ids,
                                 .dy = arguments.tensor(kTokens * kWidth),
                                 .dweight = arguments.make(kVocabulary * kWidth),
                                 .dweight_mode = mode};
  const bool overwrites = mode == GradientMode::overwrite;
  measure(
      state, [&] { op->backward(args, memory, *stream); }, 0,
      bytes + kFloatBytes * static_cast<double>(overwrites ? kVocabulary * kWidth : 2 * kTokens * kWidth));
}

void rotary(benchmark::State& state, bool is_backward) {
  Arguments arguments;
  const RotaryDescription d{.rows = kTokens,
                            .heads = kHeads,
                            .kv_heads = kKvHeads,
                            .head_dim = kHeadDim,
                            .max_positions = kTokens,
                            .dtype = dtype()};
  const auto op = backend().make(d);
  const OpMemory memory = arguments.memory_of(*op);
  const auto stream = backend().make_stream();
  std::vector<double> frequencies;
  for (int i = 0; i < kHeadDim / 2; ++i) frequencies.push_back(std::pow(10000.0, -2.0 * i / kHeadDim));
  const std::vector<float> values = rotary_table(frequencies, 1, kTokens);
  auto* const table = arguments.make(static_cast<std::int64_t>(values.size()));
  std::copy(values.begin(), values.end(), table);
  auto* const positions = arguments.make<std::int32_t>(kTokens);
  for (std::int64_t i = 0; i < kTokens; ++i) positions[i] = static_cast<std::int32_t>(i);
  const std::int64_t n = d.rows * d.row_size();
  const void* const in = arguments.tensor(n);
  void* const out = arguments.tensor(n);
  const auto run = [&] {
    if (is_backward)
      op->backward({.dy = in, .positions = positions, .table = table, .dx = out}, memory, *stream);
    else
      op->forward({.x = in, .positions = positions, .table = table, .y = out}, memory, *stream);
  };
  measure(state, run, 0, 2 * element_bytes() * static_cast<double>(n));
}

void swiglu(benchmark::State& state, bool is_backward) {
  Arguments arguments;
  const auto op = backend().make(SwiGluDescription{.rows = kTokens, .width = kHidden, .dtype = dtype()});
  const OpMemory memory = arguments.memory_of(*op);
  const auto stream = backend().make_stream();
  const std::int64_t n = kTokens * kHidden;
  const void* const x = arguments.tensor(2 * n);
  void *const y = arguments.tensor(n), *const dx = arguments.tensor(2 * n);
  const auto run = [&] {
    if (is_backward)
      op->backward({.x = x, .dy = y, .dx = dx}, memory, *stream);
    else
      op->forward({.x = x, .y = y}, memory, *stream);
  };
  measure(state, run, 0, (is_backward ? 5 : 3) * element_bytes() * static_cast<double>(n));
}

void lora(benchmark::State& state, bool is_backward, double dropout) {
  Arguments arguments;
  const LoraDescription d{.rows = kTokens,
                          .in_features = kWidth,
                          .out_features = kWidth + 2 * kKvHeads * kHeadDim,
                          .rank = 8,
                          .parts = {{0, kWidth, 1}, {kWidth, 192, 2}, {kWidth + 192, 192, 3}},
                          .scale = 2,
                          .dtype = dtype(),
                          .dropout = dropout,
                          .tokens = kTokens};
  const auto op = backend().make(d);
  const OpMemory memory = arguments.memory_of(*op);
  const auto stream = backend().make_stream();
  auto* const scalars = static_cast<StepScalars*>(arguments.bytes(sizeof(StepScalars)));
  *scalars = {};
  auto* const ids = static_cast<std::uint32_t*>(arguments.bytes(sizeof(std::uint32_t)));
  *ids = 1;
  const Lora::Samples samples{.ids = ids, .scalars = scalars};
  const void *const x = arguments.tensor(kTokens * kWidth), *const a = arguments.tensor(d.ranks() * kWidth);
  const void* const b = arguments.tensor(d.columns() * d.rank);
  void *const y = arguments.tensor(kTokens * d.out_features), *const dx = arguments.tensor(kTokens * kWidth);
  float *const da = arguments.make(d.ranks() * kWidth), *const db = arguments.make(d.columns() * d.rank);
  const auto run = [&] {
    if (is_backward)
      op->backward({.dy = y, .x = x, .a = a, .b = b, .dx = dx, .da = da, .db = db, .samples = samples}, memory,
                   *stream);
    else
      op->forward({.x = x, .a = a, .b = b, .y = y, .samples = samples}, memory, *stream);
  };
  const auto product = 2.0 * static_cast<double>(kTokens * d.rank * (3 * kWidth + d.columns()));
  measure(state, run, (is_backward ? 2 : 1) * product,
          element_bytes() * static_cast<double>(kTokens * (kWidth + 2 * d.out_features)));
}

void nf4_matmul(benchmark::State& state, bool is_backward) {
  Arguments arguments;
  const Nf4MatmulDescription d{
      .rows = kTokens, .in_features = kWidth, .matrices = {kHidden, kHidden}, .dtype = dtype()};
  const auto op = backend().make(d);
  const OpMemory memory = arguments.memory_of(*op);
  const auto stream = backend().make_stream();
  const Nf4Layout layout = Nf4Layout::of(d.matrices, kWidth);
  const auto* const weight = static_cast<const std::byte*>(arguments.bytes(layout.size_bytes));
  const float* const scales = arguments.make(kNf4ScaleValues);
  void *const x = arguments.tensor(kTokens * kWidth), *const y = arguments.tensor(2 * kTokens * kHidden);
  const auto run = [&] {
    if (is_backward)
      op->backward({.dy = y, .weight = weight, .scale_values = scales, .dx = x}, memory, *stream);
    else
      op->forward({.x = x, .weight = weight, .scale_values = scales, .y = y}, memory, *stream);
  };
  measure(state, run, 4.0 * static_cast<double>(kTokens * kWidth * kHidden), static_cast<double>(layout.size_bytes));
}

void head(benchmark::State& state, bool is_inference) {
  Arguments arguments;
  const auto op = backend().make(LinearCrossEntropyDescription{
      .rows = kTokens, .width = kWidth, .vocabulary = kVocabulary, .dtype = dtype(), .inference = is_inference});
  const OpMemory memory = arguments.memory_of(*op);
  const auto stream = backend().make_stream();
  auto* const scalars = static_cast<StepScalars*>(arguments.bytes(sizeof(StepScalars)));
  *scalars = {.loss_weight = 1.0f / kTokens};
  const LinearCrossEntropy::Forward args{.x = arguments.tensor(kTokens * kWidth),
                                         .weight = arguments.tensor(kVocabulary * kWidth),
                                         .targets = make_ids(arguments),
                                         .sums = static_cast<LossSums*>(arguments.bytes(sizeof(LossSums))),
                                         .scalars = scalars,
                                         .dx = arguments.tensor(kTokens * kWidth),
                                         .dweight = arguments.make(kVocabulary * kWidth)};
  const double product = 2.0 * static_cast<double>(kTokens) * kWidth * kVocabulary;
  measure(
      state, [&] { op->forward(args, memory, *stream); }, (is_inference ? 1 : 3) * product,
      (element_bytes() + (is_inference ? 0 : kFloatBytes)) * static_cast<double>(kVocabulary * kWidth));
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  using namespace lockstep;         // NOLINT
  using namespace lockstep::bench;  // NOLINT
  add("embedding/256x576/forward", [](benchmark::State& state) { embedding(state, GradientMode::skip); });
  add("embedding/256x576/accumulate", [](benchmark::State& state) { embedding(state, GradientMode::accumulate); });
  add("embedding/256x576/overwrite", [](benchmark::State& state) { embedding(state, GradientMode::overwrite); });
  add("rotary/256x960/forward", [](benchmark::State& state) { rotary(state, false); });
  add("rotary/256x960/backward", [](benchmark::State& state) { rotary(state, true); });
  add("swiglu/256x1536/forward", [](benchmark::State& state) { swiglu(state, false); });
  add("swiglu/256x1536/backward", [](benchmark::State& state) { swiglu(state, true); });
  add("lora/256x576-960/forward", [](benchmark::State& state) { lora(state, false, 0); });
  add("lora/256x576-960/backward", [](benchmark::State& state) { lora(state, true, 0); });
  add("lora/256x576-960/forward, dropout", [](benchmark::State& state) { lora(state, false, 0.05); });
  add("lora/256x576-960/backward, dropout", [](benchmark::State& state) { lora(state, true, 0.05); });
  add("nf4_matmul/256x576-3072/forward", [](benchmark::State& state) { nf4_matmul(state, false); });
  add("nf4_matmul/256x576-3072/data gradient", [](benchmark::State& state) { nf4_matmul(state, true); });
  add("linear_cross_entropy/256x576-49152/gradients", [](benchmark::State& state) { head(state, false); });
  add("linear_cross_entropy/256x576-49152/inference", [](benchmark::State& state) { head(state, true); });
  return run_all(argc, argv);
}
