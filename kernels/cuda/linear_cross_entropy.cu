// The last matmul and the cross entropy (lockstep/ops/linear_cross_entropy.h). A chunk of rows goes through three
// products of cuBLASLt, with the softmax of its logits between them:
//   logits (chunk, vocabulary) = x * weight^T, in dtype, or in fp32 for inference;  dlogits = their gradient, in place;
//   dx = dlogits * weight;  dweight += dlogits^T * x, in fp32 or in that type
// A block computes the softmax and the gradient of a row. It reads the logits once for both the maximum and the sum,
// which is rescaled when a larger logit is found, and keeps them in shared memory for the gradient. It reads again what
// does not fit there: of 227 KiB, the logits in 16 bits beyond the first 115,712. With 151,936 logits these are 72 KB
// for each multiprocessor, 9.6 MB in all, which are still in the L2 cache. One block then adds up the rows, in an order
// that depends on their number alone. Exponentials are fp32, sums of them fp64 from one group of packs to the next.
// Bytes moved for each logit, with the products: 10 in 16 bits, which is the floor for separate products (two writes
// and three reads); 20 in fp32, and 4 more for what was not kept; 8 for inference. Each chunk also reads and writes
// dweight. Launches: 4 for each chunk, of which 3 are products, and 1.
#include <algorithm>
#include <cfloat>
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

constexpr unsigned kThreads = 512;             // two blocks for each multiprocessor, as far as rows are short enough
constexpr int kAhead = 4;                      // packs of a thread whose loads are under way together
constexpr std::size_t kOwnSharedBytes = 1024;  // at most, of the static arrays of block_sum() and block_max()

DType dtype_of_logits(const LinearCrossEntropyDescription& d) { return d.has_gradients() ? d.dtype : DType::fp32; }

/// At most so many logits exist at once. Each chunk reads and writes dweight, which is cheap compared with its products
/// only from thousands of rows on: at Qwen2's vocabulary, a step of 16,384 tokens moves 5 GB for this.
std::int64_t most_logits(const LinearCrossEntropyDescription& d) {
  constexpr std::int64_t kRows = 4096, kLeast = std::int64_t{256} << 20, kMost = std::int64_t{1} << 30;
  const auto size = static_cast<std::int64_t>(size_bytes(dtype_of_logits(d)));
  return std::clamp(kRows * d.vocabulary * size, kLeast, kMost) / size;
}
constexpr std::int64_t kTileRows = 128;  // chunks of whole tiles of the products waste nothing

struct RowResult {
  double loss = 0;
  double correct = 0;
};

constexpr float kLog2E = 1.44269504f;

/// 2^x with a relative error of at most 2^-22, or 0 where it is below 2^-126.
__device__ inline float power_of_two(float x) {
#ifdef __CUDA_ARCH__
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return exp2f(x);
#endif
}

/// Calls f(number, k) for the packs of this thread at k, k + kN * kThreads, ...: kAhead at a time, then one by one.
template <int kN, typename F>
__device__ void for_packs(std::uint32_t n, const F& f) {
  constexpr std::uint32_t kStep = kN * kThreads;
  std::uint32_t k = kN * threadIdx.x;
  for (; k + (kAhead - 1) * kStep < n; k += kAhead * kStep) f(std::integral_constant<int, kAhead>{}, k);
  for (; k < n; k += kStep) f(std::integral_constant<int, 1>{}, k);
}

/// A pack has kN logits: one if rows are not aligned to 16 bytes. The first `n_kept` logits of a row stay in shared
/// memory. With gradients, they replace the logits.
template <typename T, int kN>
__global__ void __launch_bounds__(kThreads, 2)
    softmax_rows(T* logits, const std::int32_t* targets, std::uint32_t n, std::uint32_t n_kept, bool has_gradients,
                 const StepScalars* scalars, const LossScale* loss_scale, RowResult* results) {
  constexpr std::uint32_t kStep = kN * kThreads;
  const std::int64_t number = gridDim.x - 1 - blockIdx.x;  // the product wrote the last rows last: they are in L2
  T* const row = logits + number * n;
  T* const kept = shared_memory<T>();
  if (targets[number] < 0) {
    if (threadIdx.x == 0) results[number] = {};
    for (std::uint32_t k = kN * threadIdx.x; has_gradients && k < n; k += kStep) store_floats(row + k, Floats<kN>{});
    return;
  }
  const auto target = static_cast<std::uint32_t>(targets[number]);
  const float of_target = to_float(row[target]);
  float greatest = -FLT_MAX;
  std::uint32_t place = n;  // of the first group that has the greatest logit
  double sum = 0;
  for_packs<kN>(n, [&](auto n_packs, std::uint32_t k) {
    Pack<T> packs[n_packs];
#pragma unroll
    for (int a = 0; a < n_packs; ++a) packs[a] = load_values<kN>(row + k + a * kStep);
    float of_group = greatest;
#pragma unroll
    for (int a = 0; a < n_packs; ++a) {
      if (k + a * kStep < n_kept) store_values<kN>(kept + k + a * kStep, packs[a]);
#pragma unroll
      for (int j = 0; j < kN; ++j) of_group = fmaxf(of_group, to_float(packs[a].values[j]));
    }
    if (of_group > greatest) {
      sum *= double{power_of_two((greatest - of_group) * kLog2E)};
      greatest = of_group;
      place = k;
    }
    float sum_of_group = 0;
#pragma unroll
    for (int a = 0; a < n_packs; ++a) {
      float of_pack = 0;
#pragma unroll
      for (int j = 0; j < kN; ++j) of_pack += power_of_two((to_float(packs[a].values[j]) - greatest) * kLog2E);
      sum_of_group += of_pack;
    }
    sum += double{sum_of_group};
  });
  const float all_greatest = block_max<kThreads>(greatest);
  if (greatest < all_greatest) sum *= double{power_of_two((greatest - all_greatest) * kLog2E)};
  sum = block_sum<kThreads>(sum);
  // The prediction is the first of the greatest logits. A row with NaN predicts nothing.
  bool is_correct = of_target == all_greatest && sum == sum;
  if (is_correct) {
    unsigned is_beaten = 0;
    for (std::uint32_t k = place; greatest == all_greatest && k < target && k <= place + (kAhead - 1) * kStep;
         k += kStep)
      for (std::uint32_t i = k; i < k + kN && i < target; ++i) is_beaten |= to_float(row[i]) == all_greatest;
    is_correct = block_sum<kThreads>(is_beaten) == 0;
  }
  if (threadIdx.x == 0)
    results[number] = {log(sum) - (double{of_target} - double{all_greatest}), is_correct ? 1.0 : 0.0};
  if (!has_gradients) return;
  const float weight = scalars->loss_weight * (loss_scale != nullptr ? loss_scale->scale : 1.0f);
  const auto inverse_sum = static_cast<float>(1.0 / sum);
  const float scale = weight * inverse_sum;
  for_packs<kN>(n, [&](auto n_packs, std::uint32_t k) {
    Pack<T> packs[n_packs];
#pragma unroll
    for (int a = 0; a < n_packs; ++a) {
      const std::uint32_t i = k + a * kStep;
      packs[a] = i < n_kept ? load_values<kN>(kept + i) : load_values<kN>(row + i);
    }
#pragma unroll
    for (int a = 0; a < n_packs; ++a) {
      Floats<kN> gradients;
#pragma unroll
      for (int j = 0; j < kN; ++j)
        gradients[j] = power_of_two((to_float(packs[a].values[j]) - all_greatest) * kLog2E) * scale;
      store_floats(row + k + a * kStep, gradients);
    }
  });
  // The thread that has just written the target's gradient as that of any other logit.
  if (threadIdx.x == target / kN % kThreads)
    row[target] = from_float<T>(weight * (power_of_two((of_target - all_greatest) * kLog2E) * inverse_sum - 1.0f));
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
  void run_chunk(const Forward& args, void* workspace, std::int64_t first, Stream& stream);
  template <typename T>
  void run_softmax(const Forward& args, T* logits, RowResult* results, std::int64_t first, Stream& stream);

  std::int64_t chunk_;  // rows; the last chunk can have fewer
  std::shared_ptr<const ParameterLayout> layout_;
  Products products_, last_products_;
  std::size_t workspace_bytes_ = 0;
  struct Offsets {
    std::size_t logits = 0, results = 0, product = 0;
  } at_;
};

CudaLinearCrossEntropy::CudaLinearCrossEntropy(const LinearCrossEntropyDescription& d, const CudaContext& context)
    : PlannedOp(d, context),
      chunk_(rows_per_chunk(d, most_logits(d), kTileRows)),
      layout_(row_major_layout(d.weight_layout, d.vocabulary * d.width, "a loss with the last matmul")),
      products_(plan_products(chunk_, context)) {
  if (const std::int64_t last = d.rows % chunk_; last != 0) last_products_ = plan_products(last, context);
  std::size_t product_bytes = 0;
  for (const Products* products : {&products_, &last_products_})
    for (const auto* product : {&products->logits, &products->dx, &products->dweight})
      if (*product) product_bytes = std::max(product_bytes, (*product)->workspace_bytes());
  WorkspacePlan workspace;
  at_.logits = workspace.take(static_cast<std::size_t>(chunk_ * d.vocabulary) * size_bytes(dtype_of_logits(d)));
  at_.results = workspace.take(static_cast<std::size_t>(d.rows) * sizeof(RowResult));
  at_.product = workspace.take(product_bytes);
  workspace_bytes_ = workspace.size_bytes();
}

CudaLinearCrossEntropy::Products CudaLinearCrossEntropy::plan_products(std::int64_t rows,
                                                                       const CudaContext& context) const {
  const auto plan = [&](const ProductDescription& product) { return plan_product(d_, product, context); };
  Products products;
  products.logits = plan({.rows = rows,
                          .columns = d_.vocabulary,
                          .inner = d_.width,
                          .b_is_transposed = true,
                          .d_dtype = dtype_of_logits(d_)});
  if (!d_.has_gradients()) return products;
  if (d_.input_gradient)
    products.dx = plan({.rows = rows, .columns = d_.width, .inner = d_.vocabulary, .d_dtype = d_.dtype});
  if (d_.weight_gradient)
    products.dweight = plan({.rows = d_.vocabulary,
                             .columns = d_.width,
                             .inner = rows,
                             .a_is_transposed = true,
                             .d_dtype = d_.gradient_dtype});
  return products;
}

void CudaLinearCrossEntropy::run_forward(const Forward& args, const OpMemory& memory, Stream& stream) {
  for (std::int64_t row = 0; row < d_.rows; row += chunk_) run_chunk(args, memory.workspace, row, stream);
  if (args.sums_mode == GradientMode::skip && args.losses == nullptr) return;
  launch(add_rows, {.threads = kThreads, .work = {.kind = "small"}}, stream,
         at<RowResult>(memory.workspace, at_.results), args.targets, d_.rows,
         args.sums_mode == GradientMode::accumulate, args.sums_mode == GradientMode::skip ? nullptr : args.sums,
         args.losses);
}

void CudaLinearCrossEntropy::run_chunk(const Forward& args, void* workspace, std::int64_t first, Stream& stream) {
  const Products& products = d_.rows - first < chunk_ ? last_products_ : products_;
  const std::size_t of_first = static_cast<std::size_t>(first * d_.width) * size_bytes(d_.dtype);
  const auto* const x = static_cast<const std::byte*>(args.x) + of_first;
  void *const logits = at(workspace, at_.logits), *const of_product = at(workspace, at_.product);
  products.logits->run({.a = x, .b = args.weight, .d = logits}, of_product, stream);
  dispatch(dtype_of_logits(d_), [&]<typename T>(T*) {
    run_softmax(args, static_cast<T*>(logits), at<RowResult>(workspace, at_.results) + first, first, stream);
  });
  if (products.dx && args.dx != nullptr)
    products.dx->run({.a = logits, .b = args.weight, .d = static_cast<std::byte*>(args.dx) + of_first}, of_product,
                     stream);
  if (products.dweight && args.dweight_mode != GradientMode::skip)
    products.dweight->run({.a = logits,
                           .b = x,
                           .d = args.dweight,
                           .accumulate = first > 0 || args.dweight_mode == GradientMode::accumulate},
                          of_product, stream);
}

template <typename T>
void CudaLinearCrossEntropy::run_softmax(const Forward& args, T* logits, RowResult* results, std::int64_t first,
                                         Stream& stream) {
  constexpr int kSize = Pack<T>::kSize;
  const auto n = static_cast<std::uint32_t>(d_.vocabulary);
  const auto fits = static_cast<std::uint32_t>((context_.shared_bytes - kOwnSharedBytes) / sizeof(T) / kSize * kSize);
  const std::uint32_t n_kept = d_.has_gradients() ? std::min(n, fits) : 0;
  const std::int64_t rows = std::min(chunk_, d_.rows - first);
  const double n_passes = !d_.has_gradients() ? 1 : sizeof(T) < sizeof(float) ? 2 : 3;
  launch(n % kSize == 0 ? softmax_rows<T, kSize> : softmax_rows<T, 1>,  // the workspace is aligned to 64 bytes
         {.blocks = static_cast<unsigned>(rows),
          .threads = kThreads,
          .shared_bytes = n_kept * static_cast<unsigned>(sizeof(T)),
          .work = {.kind = "packs", .bytes = moved_bytes(n_passes, rows, n, sizeof(T))}},
         stream, logits, args.targets + first, n, n_kept, d_.has_gradients(), args.scalars, args.loss_scale, results);
}

}  // namespace

std::unique_ptr<LinearCrossEntropy> make_linear_cross_entropy(const LinearCrossEntropyDescription& d,
                                                              const CudaContext& context) {
  dispatch(d.dtype, [](auto*) {});
  return std::make_unique<CudaLinearCrossEntropy>(d, context);
}

}  // namespace lockstep::cuda
