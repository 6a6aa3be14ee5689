// Softmax cross entropy with label smoothing (lockstep/ops/cross_entropy.h). One warp computes a row, or one block if
// the row is long. Forward reads the row once and keeps its maximum logit and 1 / sum exp(logit - maximum), so that
// backward also reads it only once. One block then adds up the rows, in an order that depends on their number alone.
//
// Exponentials are fp32, sums of them fp64 from one pack of 16 bytes to the next.
// Bytes moved: forward one logit, backward one logit and one gradient, for each of rows * classes, and 40 bytes per row
// between kernels. Without the 40, this is the minimum.
#include <memory>

#include "kernels/cuda/base/block_sum.h"
#include "kernels/cuda/base/context.h"
#include "kernels/cuda/base/numbers.h"
#include "lockstep/ops/cross_entropy.h"

namespace lockstep::cuda {
namespace {

constexpr unsigned kThreads = 256;
constexpr std::int64_t kLongRow = 2048;  // from this number of classes on, each row gets a whole block

/// What forward computes for a row. The results of rows are added up later.
struct RowResult {
  double loss = 0;
  double correct = 0;
  double weight = 0;  // of the class of the label, or of both classes
};

/// What backward needs from a row.
struct RowSaved {
  float greatest = 0;
  float inverse_sum = 0;
};

struct Rows {
  std::int64_t n = 0;
  std::int64_t classes = 0;
  float label_smoothing = 0;
  bool by_packs = false;  // every row is aligned to 16 bytes
  const float* class_weights = nullptr;
  double class_weight_sum = 0;
  MixedLabels mixed{};

  __device__ float label_weight() const { return mixed.labels ? *mixed.weight : 1.0f; }
  __device__ std::int32_t other_label(std::int64_t row, std::int32_t label) const {
    return mixed.labels ? mixed.labels[row] : label;
  }
};

/// Calls f(pack, n, k) for classes [k, k + n) of a row: a pack at a time if rows are aligned, otherwise one by one.
template <typename T, unsigned kRowThreads, typename F>
__device__ void for_classes(const T* row, const Rows& rows, const F& f) {
  const unsigned thread = threadIdx.x % kRowThreads;
  if (rows.by_packs) {
    for (std::int64_t k = std::int64_t{Pack<T>::kSize} * thread; k < rows.classes; k += Pack<T>::kSize * kRowThreads)
      f(load_pack(row + k), std::integral_constant<int, Pack<T>::kSize>{}, k);
  } else {
    for (std::int64_t k = thread; k < rows.classes; k += kRowThreads) {
      Pack<T> one;
      one.values[0] = row[k];
      f(one, std::integral_constant<int, 1>{}, k);
    }
  }
}

struct Greatest {
  float value = 0;
  std::int64_t at = 0;  // among equal values, the first
};
__device__ inline Greatest greater(const Greatest& a, const Greatest& b) {
  return b.value > a.value || (b.value == a.value && b.at < a.at) ? b : a;
}
__device__ inline Greatest warp_greatest(Greatest mine) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    const Greatest other{__shfl_xor_sync(kAllLanes, mine.value, distance),
                         __shfl_xor_sync(kAllLanes, mine.at, distance)};
    mine = greater(mine, other);
  }
  return mine;
}

template <unsigned kRowThreads>
__device__ Greatest row_greatest(Greatest mine) {
  mine = warp_greatest(mine);
  if constexpr (kRowThreads == 32) return mine;
  constexpr unsigned kWarps = kThreads / 32;
  __shared__ float values[kWarps];
  __shared__ std::int64_t places[kWarps];
  if (threadIdx.x % 32 == 0) {
    values[threadIdx.x / 32] = mine.value;
    places[threadIdx.x / 32] = mine.at;
  }
  __syncthreads();
  return warp_greatest({values[threadIdx.x % kWarps], places[threadIdx.x % kWarps]});
}

template <unsigned kRowThreads>
__device__ double row_sum(double mine) {
  if constexpr (kRowThreads == 32)
    return warp_sum(mine);
  else
    return block_sum<kThreads>(mine);
}

/// The number of a thread's row.
template <unsigned kRowThreads>
__device__ std::int64_t row_number() {
  return std::int64_t{blockIdx.x} * (kThreads / kRowThreads) + threadIdx.x / kRowThreads;
}

template <typename T, unsigned kRowThreads>
__global__ void __launch_bounds__(kThreads)
    forward_rows(const T* logits, const std::int32_t* labels, Rows rows, RowResult* results, RowSaved* saved) {
  const std::int64_t number = row_number<kRowThreads>();
  if (number >= rows.n) return;
  const T* row = logits + number * rows.classes;
  const std::int32_t label = labels[number];
  if (label < 0) return;

  // A single pass (online softmax): whenever a greater logit is found, the sum so far is rescaled.
  Greatest mine{-INFINITY, rows.classes};
  double sum = 0, sum_of_logits = 0;
  const bool smooths = rows.label_smoothing != 0.0f;
  for_classes<T, kRowThreads>(row, rows, [&](const Pack<T>& pack, auto n, std::int64_t k) {
    const float before = mine.value;
#pragma unroll
    for (int j = 0; j < n; ++j) {
      const float x = to_float(pack.values[j]);
      if (x > mine.value) mine = {x, k + j};
    }
    if (mine.value > before) sum *= double{expf(before - mine.value)};
    float of_pack = 0;
#pragma unroll
    for (int j = 0; j < n; ++j) of_pack += expf(to_float(pack.values[j]) - mine.value);
    sum += double{of_pack};
    if (!smooths) return;
    float logits_of_pack = 0;
#pragma unroll
    for (int j = 0; j < n; ++j)
      logits_of_pack +=
          rows.class_weights ? rows.class_weights[k + j] * to_float(pack.values[j]) : to_float(pack.values[j]);
    sum_of_logits += double{logits_of_pack};
  });
  const Greatest greatest = row_greatest<kRowThreads>(mine);
  if (mine.value < greatest.value) sum *= double{expf(mine.value - greatest.value)};
  sum = row_sum<kRowThreads>(sum);
  if (smooths) sum_of_logits = row_sum<kRowThreads>(sum_of_logits);
  if (threadIdx.x % kRowThreads != 0) return;

  const double log_sum = log(sum) + double{greatest.value};
  const double smoothing = rows.label_smoothing;
  const double n_classes = static_cast<double>(rows.classes);
  double loss = 0, weight = 0;
  const auto add_label = [&](std::int32_t k, double part) {
    const double of_class = rows.class_weights ? rows.class_weights[k] : 1.0;
    loss += part * of_class * ((1.0 - smoothing) * (log_sum - double{to_float(row[k])}));
    weight += part * of_class;
  };
  const double label_weight = rows.label_weight();
  const std::int32_t other = rows.other_label(number, label);
  add_label(label, label_weight);
  if (label_weight != 1) add_label(other, 1 - label_weight);
  if (smooths && rows.class_weights)
    loss += smoothing * (rows.class_weight_sum * log_sum - sum_of_logits) / n_classes;
  else if (smooths)
    loss += smoothing * (log_sum - sum_of_logits / n_classes);
  results[number] = {loss, greatest.at == (label_weight >= 0.5 ? label : other) ? 1.0 : 0.0, weight};
  if (saved) saved[number] = {greatest.value, static_cast<float>(1.0 / sum)};
}

__global__ void __launch_bounds__(kThreads) add_rows(const RowResult* results, const std::int32_t* labels,
                                                     std::int64_t n_rows, bool accumulates, LossSums* sums) {
  LossSums mine;
  for (std::int64_t row = threadIdx.x; row < n_rows; row += kThreads) {
    if (labels[row] < 0) continue;
    mine.loss += results[row].loss;
    mine.correct += results[row].correct;
    mine.count += 1;
    mine.weight += results[row].weight;
  }
  const double loss = block_sum<kThreads>(mine.loss), correct = block_sum<kThreads>(mine.correct),
               count = block_sum<kThreads>(mine.count), weight = block_sum<kThreads>(mine.weight);
  if (threadIdx.x != 0) return;
  const LossSums before = accumulates ? *sums : LossSums{};
  *sums = {before.loss + loss, before.correct + correct, before.count + count, before.weight + weight};
}

template <typename T, unsigned kRowThreads>
__global__ void __launch_bounds__(kThreads)
    backward_rows(const T* logits, const std::int32_t* labels, Rows rows, const RowSaved* saved,
                  const StepScalars* scalars, const LossScale* loss_scale, T* dlogits) {
  const std::int64_t number = row_number<kRowThreads>();
  if (number >= rows.n) return;
  const T* row = logits + number * rows.classes;
  T* drow = dlogits + number * rows.classes;
  const std::int32_t label = labels[number];
  const bool counts = label >= 0;
  const RowSaved of_row = counts ? saved[number] : RowSaved{};
  const float weight = scalars->loss_weight * (loss_scale ? loss_scale->scale : 1.0f);
  const float q_other = rows.label_smoothing / static_cast<float>(rows.classes);
  const float label_weight = rows.label_weight();
  const std::int32_t other = rows.other_label(number, label);
  const float q_label = label_weight * (1.0f - rows.label_smoothing),
              q_second = (1.0f - label_weight) * (1.0f - rows.label_smoothing);
  const float* const class_weights = rows.class_weights;
  const float q_sum = class_weights && counts ? static_cast<float>(double{q_label} * class_weights[label] +
                                                                   double{q_second} * class_weights[other] +
                                                                   q_other * rows.class_weight_sum)
                                              : 1.0f;
  for_classes<T, kRowThreads>(row, rows, [&](const Pack<T>& pack, auto n, std::int64_t k) {
    Pack<T> gradients;
#pragma unroll
    for (int j = 0; j < n; ++j) {
      const float softmax = expf(to_float(pack.values[j]) - of_row.greatest) * of_row.inverse_sum;
      const float q = q_other + (k + j == label ? q_label : 0.0f) + (k + j == other ? q_second : 0.0f);
      const float difference = class_weights ? softmax * q_sum - class_weights[k + j] * q : softmax - q;
      gradients.values[j] = from_float<T>(counts ? weight * difference : 0.0f);
    }
    if constexpr (n == 1)
      drow[k] = gradients.values[0];
    else
      store_pack(drow + k, gradients);
  });
}

class CudaSoftmaxCrossEntropy final : public CudaOp<SoftmaxCrossEntropyDescription> {
 public:
  using PlannedOp::PlannedOp;

  OpMemoryRequirements memory_requirements() const override {
    const auto rows = static_cast<std::size_t>(d_.rows);
    return {.forward_workspace_bytes = rows * sizeof(RowResult),
            .saved_bytes = d_.inference ? 0 : rows * sizeof(RowSaved)};
  }
  std::string describe() const override {
    return has_long_rows() ? "own kernels: a block for each row" : "own kernels: a warp for each row";
  }

  void run_forward(const Forward& args, const OpMemory& memory, Stream& stream) override {
    auto* results = static_cast<RowResult*>(memory.workspace);
    auto* saved = d_.inference ? nullptr : static_cast<RowSaved*>(memory.saved);
    dispatch(d_.dtype, [&]<typename T>(T*) {
      launch(has_long_rows() ? forward_rows<T, kThreads> : forward_rows<T, 32>,
             grid(moved_bytes(1, d_.rows, d_.classes, sizeof(T))), stream, static_cast<const T*>(args.logits),
             args.labels, rows<T>(args.logits, nullptr, args.class_weights, args.mixed), results, saved);
    });
    if (args.sums_mode == GradientMode::skip) return;
    launch(add_rows, {.threads = kThreads, .work = {.kind = "small"}}, stream, results, args.labels, d_.rows,
           args.sums_mode == GradientMode::accumulate, args.sums);
  }

  void run_backward(const Backward& args, const OpMemory& memory, Stream& stream) override {
    dispatch(d_.dtype, [&]<typename T>(T*) {
      launch(has_long_rows() ? backward_rows<T, kThreads> : backward_rows<T, 32>,
             grid(moved_bytes(2, d_.rows, d_.classes, sizeof(T))), stream, static_cast<const T*>(args.logits),
             args.labels, rows<T>(args.logits, args.dlogits, args.class_weights, args.mixed),
             static_cast<const RowSaved*>(memory.saved), args.scalars, args.loss_scale, static_cast<T*>(args.dlogits));
    });
  }

 private:
  bool has_long_rows() const { return d_.classes >= kLongRow; }
  Grid grid(double bytes) const {
    const auto rows = static_cast<std::size_t>(d_.rows), in_block = std::size_t{kThreads / 32};
    return {.blocks = static_cast<unsigned>(has_long_rows() ? rows : (rows + in_block - 1) / in_block),
            .threads = kThreads,
            .work = {.kind = "packs", .bytes = bytes}};
  }
  template <typename T>
  Rows rows(const void* logits, const void* dlogits, const float* class_weights, const MixedLabels& mixed) const {
    return {.n = d_.rows,
            .classes = d_.classes,
            .label_smoothing = d_.label_smoothing,
            .by_packs = d_.classes % Pack<T>::kSize == 0 && are_aligned(logits, dlogits),
            .class_weights = class_weights,
            .class_weight_sum = d_.class_weight_sum,
            .mixed = mixed};
  }
};

}  // namespace

std::unique_ptr<SoftmaxCrossEntropy> make_softmax_cross_entropy(const SoftmaxCrossEntropyDescription& d,
                                                                const CudaContext& context) {
  return std::make_unique<CudaSoftmaxCrossEntropy>(d, context);
}

}  // namespace lockstep::cuda
