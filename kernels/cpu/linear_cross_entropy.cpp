// The last matmul and the cross entropy (lockstep/ops/linear_cross_entropy.h). A chunk of rows goes through three
// products (base/product.h), with the softmax of its logits between them:
//   logits (chunk, vocabulary) fp32 = x * weight^T;  dlogits = their gradient, in place in fp32, in memory of its own
//   in bf16;  dx = dlogits * weight;  dweight += dlogits^T * x
// All operands are row-major. oneDNN's matmul packs blocks of them itself, which measures as fast as its inner product
// with packed weights, and needs no packed copy (SmolLM-135M, 256 rows, one core with AVX-512: 100 GFLOP/s in fp32 and
// 190 in bf16 either way).
// Rows are summed in their order. Where oneDNN has no instructions for bf16, it multiplies in fp32, and each call then
// widens x and the weight.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "kernels/cpu/base/parallel.h"
#include "kernels/cpu/base/product.h"
#include "kernels/cpu/base/simd.h"
#include "kernels/cpu/base/widen.h"
#include "lockstep/ops/linear_cross_entropy.h"
#include "lockstep/workspace.h"

namespace lockstep::cpu {

/// The logits of one row, which are overwritten by exponentials.
struct SoftmaxRow {
  float* logits = nullptr;  // (n)
  std::int64_t n = 0;
  std::int64_t target = 0;
};
struct SoftmaxResult {
  float greatest = 0;
  double sum = 0;  // of e^(logit - greatest)
  bool is_correct = false;
};

}  // namespace lockstep::cpu

#define LOCKSTEP_KERNELS "kernels/cpu/linear_cross_entropy_kernels.h"
#include "kernels/cpu/base/each_isa.h"

namespace lockstep::cpu {
namespace {

constexpr std::int64_t kMostLogits = std::int64_t{16} << 20;  // of a chunk: 64 MiB

struct RowResult {
  double loss = 0;
  bool is_correct = false;
};

/// The products for a chunk with some number of rows.
struct ChunkProducts {
  std::unique_ptr<Product> logits, dx, dweight, dweight_added;  // dweight_added adds to the previous contents
};

std::string text(const LinearCrossEntropyDescription& d) {
  return fmt::format("loss of ({}, {}) over a vocabulary of {}{}", d.rows, d.width, d.vocabulary,
                     d.dtype == DType::fp32 ? "" : fmt::format(", {}", name(d.dtype)));
}

class CpuLinearCrossEntropy final : public CpuOp<LinearCrossEntropyDescription> {
 public:
  CpuLinearCrossEntropy(const LinearCrossEntropyDescription& d, const CpuContext& context)
      : PlannedOp(d, context),
        chunk_(rows_per_chunk(d, kMostLogits)),
        layout_(canonical_layout(d.weight_layout, {d.vocabulary, d.width})),
        inner_(product_type(d.dtype)) {
    plan();
  }

  OpMemoryRequirements memory_requirements() const override { return {.forward_workspace_bytes = workspace_bytes_}; }
  std::string describe() const override {
    return fmt::format("{}: {} chunks of {} rows, {}{}{}", text(d_), (d_.rows + chunk_ - 1) / chunk_, chunk_,
                       algorithm_, d_.has_gradients() ? "; gradients in forward" : "",
                       is_widened() ? "; multiplied in fp32" : "");
  }
  std::shared_ptr<const ParameterLayout> weight_layout() const override { return layout_; }

  void run_forward(const Forward& args, const OpMemory& memory, Stream&) override {
    const void *x = args.x, *weight = args.weight;
    if (is_widened()) {
      float *const inner_x = at<float>(memory.workspace, at_.x), *const inner_weight =
                                                                     at<float>(memory.workspace, at_.weight);
      widen(static_cast<const Bf16*>(x), inner_x, d_.rows * d_.width, context_);
      widen(static_cast<const Bf16*>(weight), inner_weight, d_.vocabulary * d_.width, context_);
      x = inner_x;
      weight = inner_weight;
    }
    for (std::int64_t row = 0; row < d_.rows; row += chunk_) run_chunk(args, x, weight, memory.workspace, row);
    add_rows(args, at<RowResult>(memory.workspace, at_.results));
  }

 private:
  bool is_widened() const { return inner_ != d_.dtype; }
  bool wants_dx() const { return d_.has_gradients() && d_.input_gradient; }
  bool wants_dweight() const { return d_.has_gradients() && d_.weight_gradient; }
  /// The chunks are then added up in fp32 in the workspace.
  bool narrows_dweight() const { return wants_dweight() && d_.gradient_dtype != DType::fp32; }
  std::size_t row_bytes() const { return static_cast<std::size_t>(d_.width) * size_bytes(inner_); }

  void plan();
  ChunkProducts plan_chunk(std::int64_t rows);
  /// `x` and `weight` have the inner type.
  void run_chunk(const Forward& args, const void* x, const void* weight, void* workspace, std::int64_t first);
  void softmax(const Forward& args, void* workspace, std::int64_t first, std::int64_t rows);
  template <typename E>
  static RowResult softmax_row(const SoftmaxRow& row, double scale, E* gradients);
  void add_rows(const Forward& args, const RowResult* results) const;

  std::int64_t chunk_;  // rows; the last chunk can have fewer
  std::shared_ptr<const ParameterLayout> layout_;
  DType inner_;  // the type in which tensors are multiplied
  ChunkProducts products_, last_products_;
  std::string algorithm_;
  std::size_t scratchpad_bytes_ = 0, workspace_bytes_ = 0;
  struct Offsets {
    std::size_t logits = 0, dlogits = 0, results = 0, x = 0, weight = 0, dx = 0, dweight = 0, scratchpad = 0;
  } at_;
};

void CpuLinearCrossEntropy::plan() {
  const std::int64_t last = d_.rows % chunk_;
  products_ = plan_chunk(chunk_);
  if (last != 0) last_products_ = plan_chunk(last);
  WorkspacePlan workspace;
  at_.logits = workspace.take(static_cast<std::size_t>(chunk_ * d_.vocabulary) * sizeof(float));
  at_.dlogits = at_.logits;
  if (d_.has_gradients() && inner_ != DType::fp32)
    at_.dlogits = workspace.take(static_cast<std::size_t>(chunk_ * d_.vocabulary) * sizeof(Bf16));
  at_.results = workspace.take(static_cast<std::size_t>(d_.rows) * sizeof(RowResult));
  if (is_widened()) {
    at_.x = workspace.take(static_cast<std::size_t>(d_.rows) * row_bytes());
    at_.weight = workspace.take(static_cast<std::size_t>(d_.vocabulary) * row_bytes());
    if (wants_dx()) at_.dx = workspace.take(static_cast<std::size_t>(chunk_) * row_bytes());
  }
  if (narrows_dweight())
    at_.dweight = workspace.take(static_cast<std::size_t>(d_.vocabulary * d_.width) * sizeof(float));
  at_.scratchpad = workspace.take(scratchpad_bytes_);
  workspace_bytes_ = workspace.size_bytes();
}

ChunkProducts CpuLinearCrossEntropy::plan_chunk(std::int64_t rows) {
  const std::int64_t vocabulary = d_.vocabulary, width = d_.width;
  const Matrix x{rows, width, inner_}, weight{vocabulary, width, inner_}, dlogits{rows, vocabulary, inner_};
  const Matrix weight_transposed{width, vocabulary, inner_, /*is_transposed=*/true};
  const Matrix dlogits_transposed{vocabulary, rows, inner_, /*is_transposed=*/true};
  const Matrix logits{rows, vocabulary}, dweight{vocabulary, width};
  const auto product = [&](const Matrix& a, const Matrix& b, const Matrix& c, bool adds) {
    std::unique_ptr<Product> made = make_product({.a = a, .b = b, .c = c, .adds = adds}, context_);
    if (algorithm_.empty()) algorithm_ = made->describe();
    scratchpad_bytes_ = std::max(scratchpad_bytes_, made->workspace_bytes());
    return made;
  };
  ChunkProducts products;
  products.logits = product(x, weight_transposed, logits, false);
  if (wants_dx()) products.dx = product(dlogits, weight, x, false);
  if (wants_dweight()) {
    products.dweight = product(dlogits_transposed, x, dweight, false);
    products.dweight_added = product(dlogits_transposed, x, dweight, true);
  }
  return products;
}

void CpuLinearCrossEntropy::run_chunk(const Forward& args, const void* all_x, const void* weight, void* workspace,
                                      std::int64_t first) {
  const std::int64_t rows = std::min(chunk_, d_.rows - first);
  const bool is_last = rows < chunk_;
  ChunkProducts& products = is_last ? last_products_ : products_;
  const auto* const x = static_cast<const std::byte*>(all_x) + static_cast<std::size_t>(first) * row_bytes();
  const void* const dlogits = at(workspace, at_.dlogits);
  float* const scratchpad = at<float>(workspace, at_.scratchpad);
  const auto multiply = [&](Product& product, const void* a, const void* b, void* c) {
    product.execute({.a = a, .b = b, .c = c, .workspace = scratchpad});
  };
  multiply(*products.logits, x, weight, at<float>(workspace, at_.logits));
  softmax(args, workspace, first, rows);
  if (wants_dx() && args.dx != nullptr) {
    void* const dx =
        static_cast<std::byte*>(args.dx) + static_cast<std::size_t>(first * d_.width) * size_bytes(d_.dtype);
    void* const inner_dx = is_widened() ? at<float>(workspace, at_.dx) : dx;
    multiply(*products.dx, dlogits, weight, inner_dx);
    if (is_widened()) narrow(static_cast<const float*>(inner_dx), static_cast<Bf16*>(dx), rows * d_.width, context_);
  }
  if (!wants_dweight() || args.dweight_mode == GradientMode::skip) return;
  const bool accumulate = args.dweight_mode == GradientMode::accumulate;
  const bool adds = first > 0 || (accumulate && !narrows_dweight());
  float* const dweight = narrows_dweight() ? at<float>(workspace, at_.dweight) : static_cast<float*>(args.dweight);
  multiply(adds ? *products.dweight_added : *products.dweight, dlogits, x, dweight);
  if (narrows_dweight() && first + rows == d_.rows)
    narrow(dweight, static_cast<Bf16*>(args.dweight), d_.vocabulary * d_.width, context_, accumulate);
}

void CpuLinearCrossEntropy::softmax(const Forward& args, void* workspace, std::int64_t first, std::int64_t rows) {
  const std::int64_t vocabulary = d_.vocabulary;
  float* const all_logits = at<float>(workspace, at_.logits);
  RowResult* const results = at<RowResult>(workspace, at_.results) + first;
  const double scale =
      d_.has_gradients() ? double{args.scalars->loss_weight} * (args.loss_scale ? args.loss_scale->scale : 1.0f) : 0.0;
  // An exponential costs about as much as moving 20 bytes.
  const int parts = part_count(context_, rows * vocabulary * 20);
  with_elements(inner_ == DType::fp32 ? DType::fp32 : DType::bf16, [&]<typename E>(E) {
    auto* const all_gradients = d_.has_gradients() ? at<E>(workspace, at_.dlogits) : nullptr;
    run_ranges(parts, rows, [&](Range range) {
      for (std::int64_t i = range.begin; i < range.end; ++i) {
        E* const gradients = all_gradients != nullptr ? all_gradients + i * vocabulary : nullptr;
        results[i] =
            softmax_row({.logits = all_logits + i * vocabulary, .n = vocabulary, .target = args.targets[first + i]},
                        scale, gradients);
      }
    });
  });
}

/// If `gradients` is null, no gradients are computed. They may be stored in place of the logits.
template <typename E>
RowResult CpuLinearCrossEntropy::softmax_row(const SoftmaxRow& row, double scale, E* gradients) {
  if (row.target < 0) {
    if (gradients != nullptr) std::fill_n(gradients, row.n, E{});
    return {};
  }
  const float logit = row.logits[row.target];
  const SoftmaxResult result = LOCKSTEP_DISPATCH(softmax_exponentials)(row, gradients != nullptr);
  if (gradients != nullptr) {
    const double softmax = row.logits[row.target] / result.sum;  // of the target
    LOCKSTEP_DISPATCH(softmax_gradient<E>)(row, static_cast<float>(scale / result.sum), gradients);
    gradients[row.target] = from_float<E>(static_cast<float>(scale * (softmax - 1)));
  }
  return {std::log(result.sum) - (double{logit} - double{result.greatest}), result.is_correct};
}

void CpuLinearCrossEntropy::add_rows(const Forward& args, const RowResult* results) const {
  LossSums sums = args.sums_mode == GradientMode::accumulate ? *args.sums : LossSums{};
  for (std::int64_t row = 0; row < d_.rows; ++row) {
    if (args.losses != nullptr) args.losses[row] = static_cast<float>(results[row].loss);
    if (args.targets[row] < 0) continue;
    sums.loss += results[row].loss;
    sums.correct += results[row].is_correct ? 1 : 0;
    sums.count += 1;
    sums.weight += 1;
  }
  if (args.sums_mode != GradientMode::skip) *args.sums = sums;
}

}  // namespace

std::unique_ptr<LinearCrossEntropy> make_linear_cross_entropy(const LinearCrossEntropyDescription& d,
                                                              const CpuContext& context) {
  require_float_or_bf16(d.dtype, "a loss with the last matmul");
  return std::make_unique<CpuLinearCrossEntropy>(d, context);
}

}  // namespace lockstep::cpu
