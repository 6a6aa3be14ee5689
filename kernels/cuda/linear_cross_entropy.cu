// The last matmul and the cross entropy (lockstep/ops/linear_cross_entropy.h). A chunk of rows goes through three
// products of cuBLASLt, with the softmax of its logits between them:
//   logits (chunk, vocabulary) fp32 = x * weight^T;  dlogits = their gradient, in place in fp32, in memory of its own
//   in 16 bits;  dx = dlogits * weight;  dweight += dlogits^T * x, in fp32
// A block computes the softmax and the gradient of a row: it reads the logits once for both the maximum and the sum,
// which is rescaled when a larger logit is found, and once more, from the L2 cache, for the gradient. One block then
// adds up the rows, in an order that depends on their number alone. Exponentials are fp32, sums of them fp64 from one
// pack of 16 bytes to the next. Bytes moved besides the products: 4 for each logit, and those of dlogits.
#include <algorithm>
#include <memory>

#include "kernels/cuda/base/block_sum.h"
#include "kernels/cuda/base/context.h"
#include "kernels/cuda/base/numbers.h"
#include "kernels/cuda/base/row_major_layout.h"
#include "kernels/cuda/base/rows.h"
#include "kernels/cuda/matmul_bare.h"
#include "lockstep/ops/linear_cross_entropy.h"
#include "lockstep/workspace.h"

namespace lockstep::cuda {
namespace {

constexpr unsigned kThreads = 256;
/// The size of the fp32 logits of a chunk. Each chunk reads and writes dweight, which is cheap compared with its
/// products only from about a thousand rows on. With 441 rows (256 MiB) at Qwen2's vocabulary, a step of 16,384 tokens
/// would move 41 GB for this; with 1,536 rows it is 12 GB.
std::int64_t logit_bytes(const LinearCrossEntropyDescription& d) {
  constexpr std::int64_t kRows = 1536, kLeast = std::int64_t{256} << 20, kMost = std::int64_t{1} << 30;
  return std::clamp(kRows * d.vocabulary * static_cast<std::int64_t>(sizeof(float)), kLeast, kMost);
}

struct RowResult {
  double loss = 0;
  double correct = 0;
};

// A thread reads four logits at a time, or one if rows are not aligned to 16 bytes.

/// If `dlogits` is null, no gradients are computed. Otherwise it may be `logits`, since each element is read only by
/// the thread that writes it.
template <typename T, int kN>
__global__ void __launch_bounds__(kThreads)
    softmax_rows(const float* logits, const std::int32_t* targets, std::int64_t n, const StepScalars* scalars,
                 const LossScale* loss_scale, T* dlogits, RowResult* results) {
  const float* const row = logits + std::int64_t{blockIdx.x} * n;
  T* const drow = dlogits != nullptr ? dlogits + std::int64_t{blockIdx.x} * n : nullptr;
  const std::int64_t target = targets[blockIdx.x];
  const std::int64_t first = std::int64_t{kN} * threadIdx.x, step = std::int64_t{kN} * kThreads;
  if (target < 0) {
    if (threadIdx.x == 0) results[blockIdx.x] = {};
    for (std::int64_t k = first; drow != nullptr && k < n; k += step) store_rounded(drow + k, Floats<kN>{}.values);
    return;
  }
  const float of_target = row[target];
  float greatest = -INFINITY;
  double sum = 0;
  unsigned is_beaten = 0;  // whether there is a greater logit, or an equal one before the target
  for (std::int64_t k = first; k < n; k += step) {
    const Floats<kN> pack = load_floats<kN>(row + k);
    const float before = greatest;
#pragma unroll
    for (int j = 0; j < kN; ++j) {
      const float x = pack.values[j];
      if (x > greatest) greatest = x;
      if (k + j != target && !(k + j < target ? x < of_target : x <= of_target)) is_beaten = 1;
    }
    if (greatest > before) sum *= double{expf(before - greatest)};
    float of_pack = 0;
#pragma unroll
    for (int j = 0; j < kN; ++j) of_pack += expf(pack.values[j] - greatest);
    sum += double{of_pack};
  }
  const float all_greatest = block_max<kThreads>(greatest);
  if (greatest < all_greatest) sum *= double{expf(greatest - all_greatest)};
  sum = block_sum<kThreads>(sum);
  is_beaten = block_sum<kThreads>(is_beaten);
  if (threadIdx.x == 0)
    results[blockIdx.x] = {log(sum) - (double{of_target} - double{all_greatest}), is_beaten == 0 ? 1.0 : 0.0};
  if (drow == nullptr) return;
  const float weight = scalars->loss_weight * (loss_scale != nullptr ? loss_scale->scale : 1.0f);
  const auto inverse_sum = static_cast<float>(1.0 / sum);
  for (std::int64_t k = first; k < n; k += step) {
    Floats<kN> pack = load_floats<kN>(row + k);
#pragma unroll
    for (int j = 0; j < kN; ++j) {
      const float softmax = expf(pack.values[j] - all_greatest) * inverse_sum;
      pack.values[j] = weight * (k + j == target ? softmax - 1.0f : softmax);
    }
    store_rounded(drow + k, pack.values);
  }
}

/// If `losses` is null, they are not stored.
__global__ void __launch_bounds__(kThreads)
    add_rows(const RowResult* results, const std::int32_t* targets, std::int64_t n_rows, bool accumulates,
             LossSums* sums, float* losses) {
  LossSums mine;
  for (std::int64_t row = threadIdx.x; row < n_rows; row += kThreads) {
    if (losses != nullptr) losses[row] = static_cast<float>(results[row].loss);
    if (targets[row] < 0) continue;
    mine.loss += results[row].loss;
    mine.correct += results[row].correct;
    mine.count += 1;
  }
  const double loss = block_sum<kThreads>(mine.loss), correct = block_sum<kThreads>(mine.correct),
               count = block_sum<kThreads>(mine.count);
  if (threadIdx.x != 0 || sums == nullptr) return;
  const LossSums before = accumulates ? *sums : LossSums{};
  *sums = {before.loss + loss, before.correct + correct, before.count + count, before.weight + count};
}

class CudaLinearCrossEntropy final : public CudaOp<LinearCrossEntropyDescription> {
 public:
  CudaLinearCrossEntropy(const LinearCrossEntropyDescription& d, const CudaContext& context);

  OpMemoryRequirements memory_requirements() const override { return {.forward_workspace_bytes = workspace_bytes_}; }
  std::string describe() const override {
    return fmt::format("loss of ({}, {}) over a vocabulary of {}, {}: {} chunks of {} rows, cuBLASLt{}", d_.rows,
                       d_.width, d_.vocabulary, d_.tf32 ? "tf32" : name(d_.dtype), (d_.rows + chunk_ - 1) / chunk_,
                       chunk_, d_.has_gradients() ? "; gradients in forward" : "");
  }
  std::shared_ptr<const ParameterLayout> weight_layout() const override { return layout_; }
  void run_forward(const Forward& args, const OpMemory& memory, Stream& stream) override;

 private:
  /// The products for a chunk with some number of rows; null if not computed.
  struct Products {
    std::unique_ptr<PlannedProduct> logits, dx, dweight;
  };
  Products plan_products(std::int64_t rows, const CudaContext& context) const;
  template <typename T>
  void run_chunk(const Forward& args, void* workspace, std::int64_t first, Stream& stream);

  std::int64_t chunk_;  // rows; the last chunk can have fewer
  std::shared_ptr<const ParameterLayout> layout_;
  Products products_, last_products_;
  std::size_t workspace_bytes_ = 0;
  struct Offsets {
    std::size_t logits = 0, dlogits = 0, results = 0, product = 0;
  } at_;
};

CudaLinearCrossEntropy::CudaLinearCrossEntropy(const LinearCrossEntropyDescription& d, const CudaContext& context)
    : PlannedOp(d, context),
      chunk_(rows_per_chunk(d, logit_bytes(d))),
      layout_(row_major_layout(d.weight_layout, d.vocabulary * d.width, "a loss with the last matmul")),
      products_(plan_products(chunk_, context)) {
  if (const std::int64_t last = d.rows % chunk_; last != 0) last_products_ = plan_products(last, context);
  std::size_t product_bytes = 0;
  for (const Products* products : {&products_, &last_products_})
    for (const auto* product : {&products->logits, &products->dx, &products->dweight})
      if (*product) product_bytes = std::max(product_bytes, (*product)->workspace_bytes());
  const auto n_logits = static_cast<std::size_t>(chunk_ * d.vocabulary);
  WorkspacePlan workspace;
  at_.logits = workspace.take(n_logits * sizeof(float));
  const bool in_place = d.dtype == DType::fp32;
  at_.dlogits = d.has_gradients() && !in_place ? workspace.take(n_logits * size_bytes(d.dtype)) : at_.logits;
  at_.results = workspace.take(static_cast<std::size_t>(d.rows) * sizeof(RowResult));
  at_.product = workspace.take(product_bytes);
  workspace_bytes_ = workspace.size_bytes();
}

CudaLinearCrossEntropy::Products CudaLinearCrossEntropy::plan_products(std::int64_t rows,
                                                                       const CudaContext& context) const {
  const auto plan = [&](const ProductDescription& product) { return plan_product(d_, product, context); };
  Products products;
  products.logits = plan({.rows = rows, .columns = d_.vocabulary, .inner = d_.width, .b_is_transposed = true});
  if (!d_.has_gradients()) return products;
  if (d_.input_gradient)
    products.dx = plan({.rows = rows, .columns = d_.width, .inner = d_.vocabulary, .d_dtype = d_.dtype});
  if (d_.weight_gradient)
    products.dweight = plan({.rows = d_.vocabulary, .columns = d_.width, .inner = rows, .a_is_transposed = true});
  return products;
}

void CudaLinearCrossEntropy::run_forward(const Forward& args, const OpMemory& memory, Stream& stream) {
  dispatch(d_.dtype, [&]<typename T>(T*) {
    for (std::int64_t row = 0; row < d_.rows; row += chunk_) run_chunk<T>(args, memory.workspace, row, stream);
  });
  if (args.sums_mode == GradientMode::skip && args.losses == nullptr) return;
  launch(add_rows, {.threads = kThreads, .work = {.kind = "small"}}, stream,
         at<RowResult>(memory.workspace, at_.results), args.targets, d_.rows,
         args.sums_mode == GradientMode::accumulate, args.sums_mode == GradientMode::skip ? nullptr : args.sums,
         args.losses);
}

template <typename T>
void CudaLinearCrossEntropy::run_chunk(const Forward& args, void* workspace, std::int64_t first, Stream& stream) {
  const std::int64_t rows = std::min(chunk_, d_.rows - first);
  const Products& products = rows < chunk_ ? last_products_ : products_;
  const T* const x = static_cast<const T*>(args.x) + first * d_.width;
  auto* const logits = at<float>(workspace, at_.logits);
  T* const dlogits = d_.has_gradients() ? at<T>(workspace, at_.dlogits) : nullptr;
  void* const of_product = at(workspace, at_.product);
  products.logits->run({.a = x, .b = args.weight, .d = logits}, of_product, stream);
  const bool by_packs = d_.vocabulary % Pack<float>::kSize == 0;  // the workspace is aligned to 64 bytes
  launch(by_packs ? softmax_rows<T, Pack<float>::kSize> : softmax_rows<T, 1>,
         {.blocks = static_cast<unsigned>(rows),
          .threads = kThreads,
          .work = {.kind = "packs",
                   .bytes = moved_bytes(2, rows, d_.vocabulary, sizeof(float)) +
                            moved_bytes(dlogits != nullptr ? 1 : 0, rows, d_.vocabulary, sizeof(T))}},
         stream, logits, args.targets + first, d_.vocabulary, args.scalars, args.loss_scale, dlogits,
         at<RowResult>(workspace, at_.results) + first);
  if (products.dx && args.dx != nullptr)
    products.dx->run({.a = dlogits, .b = args.weight, .d = static_cast<T*>(args.dx) + first * d_.width}, of_product,
                     stream);
  if (products.dweight && args.dweight_mode != GradientMode::skip)
    products.dweight->run({.a = dlogits,
                           .b = x,
                           .d = args.dweight,
                           .accumulate = first > 0 || args.dweight_mode == GradientMode::accumulate},
                          of_product, stream);
}

}  // namespace

std::unique_ptr<LinearCrossEntropy> make_linear_cross_entropy(const LinearCrossEntropyDescription& d,
                                                              const CudaContext& context) {
  dispatch(d.dtype, [](auto*) {});
  return std::make_unique<CudaLinearCrossEntropy>(d, context);
}

}  // namespace lockstep::cuda
