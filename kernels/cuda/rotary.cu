// Rotary position embedding (lockstep/ops/rotary.h). A warp computes a head: its lanes have the same pairs in every
// step, so that x, dy and dx may share memory, and the norm of a head is a sum over the warp. The gradients of the
// norms' weights have two stages: each warp adds up its heads of a block of rows, and a second kernel adds these sums
// in their order. Blocks of rows depend on the number of rows alone, so the sums have the same bits on every device.
// Bytes moved, where E is the size of a row: forward 2E; backward 2E, or without the values if dx is dy, and 3E with
// norms. The table stays in the caches.
#include <algorithm>
#include <memory>

#include "kernels/cuda/base/block_sum.h"
#include "kernels/cuda/base/context.h"
#include "kernels/cuda/base/numbers.h"
#include "lockstep/ops/rotary.h"

namespace lockstep::cuda {
namespace {

constexpr unsigned kThreads = 256, kWarps = kThreads / 32;
constexpr int kPairs = RotaryDescription::kMaxHeadDim / 2 / 32;  // the maximum number of pairs per lane

/// What the kernels know about the shape.
struct Heads {
  std::int64_t rows = 0, heads = 0, kv_heads = 0, max_positions = 0;
  int n_pairs = 0;
  bool interleaved = false;
  bool norm = false;
  float epsilon = 0, weight_offset = 0;

  __device__ std::int64_t all() const { return heads + 2 * kv_heads; }
  /// The positions of the first and the second number of a pair in a head.
  __device__ int first(int pair) const { return interleaved ? 2 * pair : pair; }
  __device__ int second(int pair) const { return interleaved ? 2 * pair + 1 : pair + n_pairs; }
};

/// The pairs of a head that a lane has: lane, lane + 32, ... Unused ones are zero.
struct Head {
  float first[kPairs], second[kPairs];
};

/// Calls f(j, pair) for the lane's pairs.
template <typename F>
__device__ void for_pairs(const Heads& heads, const F& f) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int j = 0; j < kPairs; ++j)
    if (lane + 32 * j < heads.n_pairs) f(j, lane + 32 * j);
}

template <typename T>
__device__ Head load_head(const T* source, const Heads& heads) {
  Head head{};
  for_pairs(heads, [&](int j, int pair) {
    head.first[j] = to_float(source[heads.first(pair)]);
    head.second[j] = to_float(source[heads.second(pair)]);
  });
  return head;
}
template <typename T>
__device__ void store_head(const Head& head, const Heads& heads, bool accumulate, T* target) {
  for_pairs(heads, [&](int j, int pair) {
    T &first = target[heads.first(pair)], &second = target[heads.second(pair)];
    first = from_float<T>(accumulate ? to_float(first) + head.first[j] : head.first[j]);
    second = from_float<T>(accumulate ? to_float(second) + head.second[j] : head.second[j]);
  });
}

/// A `direction` of -1 rotates back.
__device__ inline void rotate(Head& head, const Heads& heads, const float* table, std::int32_t position,
                              float direction) {
  const std::int64_t last = heads.max_positions - 1;
  const std::int64_t row = position < 0 ? 0 : position > last ? last : position;
  const float* const cosines = table + row * 2 * heads.n_pairs;
  const float* const sines = cosines + heads.n_pairs;
  for_pairs(heads, [&](int j, int pair) {
    const float cosine = cosines[pair], sine = direction * sines[pair];
    const float first = head.first[j], second = head.second[j];
    head.first[j] = first * cosine - second * sine;
    head.second[j] = second * cosine + first * sine;
  });
}

__device__ inline float mean_product(const Head& a, const Head& b, const Heads& heads) {
  float sum = 0;
#pragma unroll
  for (int j = 0; j < kPairs; ++j) sum += a.first[j] * b.first[j] + a.second[j] * b.second[j];
  return warp_sum(sum) / static_cast<float>(2 * heads.n_pairs);
}

/// Replaces a head by its normalised numbers n, and returns 1 / sqrt(mean of squares + epsilon).
__device__ inline float normalize(Head& head, const Heads& heads) {
  const float inverse = 1.0f / sqrtf(mean_product(head, head, heads) + heads.epsilon);
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    head.first[j] *= inverse;
    head.second[j] *= inverse;
  }
  return inverse;
}
/// The factors of queries or keys after their norm.
__device__ inline Head load_weight(const float* weight, const Heads& heads) {
  Head head = load_head(weight, heads);
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    head.first[j] += heads.weight_offset;
    head.second[j] += heads.weight_offset;
  }
  return head;
}
__device__ inline void multiply(Head& head, const Head& by) {
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    head.first[j] *= by.first[j];
    head.second[j] *= by.second[j];
  }
}

template <typename T>
__device__ void copy_values(const T* source, const Heads& heads, bool accumulate, T* target) {
  if (source == target) return;
  for (int i = static_cast<int>(threadIdx.x % 32); i < 2 * heads.n_pairs; i += 32)
    target[i] = accumulate ? from_float<T>(to_float(target[i]) + to_float(source[i])) : source[i];
}

/// One warp per head, including the heads of values.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    rotary_forward(const T* x, const std::int32_t* positions, const float* table, const float* q_norm,
                   const float* k_norm, T* y, Heads heads) {
  const std::int64_t warp = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const std::int64_t row = warp / heads.all(), h = warp % heads.all(), at = warp * 2 * heads.n_pairs;
  if (row >= heads.rows) return;
  if (h >= heads.heads + heads.kv_heads) return copy_values(x + at, heads, false, y + at);
  Head head = load_head(x + at, heads);
  if (heads.norm) {
    normalize(head, heads);
    multiply(head, load_weight(h < heads.heads ? q_norm : k_norm, heads));
  }
  rotate(head, heads, table, positions[row], 1);
  store_head(head, heads, false, y + at);
}

/// Backward without norms, also with one warp per head.
template <typename T>
__global__ void __launch_bounds__(kThreads) rotary_backward(const T* dy, const std::int32_t* positions,
                                                            const float* table, T* dx, bool accumulate, Heads heads) {
  const std::int64_t warp = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const std::int64_t row = warp / heads.all(), h = warp % heads.all(), at = warp * 2 * heads.n_pairs;
  if (row >= heads.rows) return;
  if (h >= heads.heads + heads.kv_heads) return copy_values(dy + at, heads, accumulate, dx + at);
  Head head = load_head(dy + at, heads);
  rotate(head, heads, table, positions[row], -1);
  store_head(head, heads, accumulate, dx + at);
}

/// Backward with norms. Each thread block has a block of rows, and its warps take turns with the heads of queries
/// (blockIdx.y 0), keys (1) or values (2). `partial` is (2, blocks, warps, head_dim). If `dx` is null, it is not
/// computed.
template <typename T>
__global__ void __launch_bounds__(kThreads, 3)  // 80 registers; without this 3, ptxas chooses 64 for sm_100 and spills
    rotary_norm_backward(const T* dy, const T* x, const std::int32_t* positions, const float* table,
                         const float* q_norm, const float* k_norm, T* dx, bool accumulate, float* partial,
                         Heads heads) {
  const unsigned kind = blockIdx.y, number = threadIdx.x / 32;
  const std::int64_t begin = heads.rows * blockIdx.x / gridDim.x, end = heads.rows * (blockIdx.x + 1) / gridDim.x;
  const std::int64_t n_heads = kind == 0 ? heads.heads : heads.kv_heads;
  const std::int64_t first_head = kind == 0 ? 0 : heads.heads + (kind - 1) * heads.kv_heads;
  const Head weight = kind < 2 ? load_weight(kind == 0 ? q_norm : k_norm, heads) : Head{};
  Head sum{};
  for (std::int64_t i = number; i < (end - begin) * n_heads; i += kWarps) {
    const std::int64_t row = begin + i / n_heads, h = first_head + i % n_heads;
    const std::int64_t at = (row * heads.all() + h) * 2 * heads.n_pairs;
    if (kind == 2) {
      if (dx != nullptr) copy_values(dy + at, heads, accumulate, dx + at);
      continue;
    }
    Head gradient = load_head(dy + at, heads), n = load_head(x + at, heads);
    rotate(gradient, heads, table, positions[row], -1);
    const float inverse = normalize(n, heads);
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      sum.first[j] += gradient.first[j] * n.first[j];
      sum.second[j] += gradient.second[j] * n.second[j];
    }
    multiply(gradient, weight);
    const float mean = mean_product(gradient, n, heads);
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      gradient.first[j] = inverse * (gradient.first[j] - n.first[j] * mean);
      gradient.second[j] = inverse * (gradient.second[j] - n.second[j] * mean);
    }
    if (dx != nullptr) store_head(gradient, heads, accumulate, dx + at);
  }
  if (kind == 2) return;
  const std::int64_t slot = (std::int64_t{kind} * gridDim.x + blockIdx.x) * kWarps + number;
  store_head(sum, heads, false, partial + slot * 2 * heads.n_pairs);
}

/// Adds up target (head_dim) from partial (n, head_dim).
__global__ void __launch_bounds__(RotaryDescription::kMaxHeadDim)
    add_partial(const float* partial, float* target, bool accumulate, std::int64_t n, int head_dim) {
  const int i = static_cast<int>(threadIdx.x);
  if (i >= head_dim) return;
  double sum = accumulate ? double{target[i]} : 0.0;
  for (std::int64_t slot = 0; slot < n; ++slot) sum += double{partial[slot * head_dim + i]};
  target[i] = static_cast<float>(sum);
}

class CudaRotary final : public CudaOp<RotaryDescription> {
 public:
  CudaRotary(const RotaryDescription& d, const CudaContext& context)
      : PlannedOp(d, context), n_blocks_(std::min<std::int64_t>(kMaxBlocks, (d.rows + kMinRows - 1) / kMinRows)) {}

  OpMemoryRequirements memory_requirements() const override {
    if (d_.inference || !d_.norm) return {};
    return {.backward_workspace_bytes = static_cast<std::size_t>(2 * n_partial() * d_.head_dim) * sizeof(float)};
  }
  std::string describe() const override {
    return fmt::format("{} pairs: own kernels{}", name(d_.pairs), d_.norm ? "; norms fused" : "");
  }

  void run_forward(const Forward& args, const OpMemory&, Stream& stream) override {
    dispatch(d_.dtype, [&]<typename T>(T*) {
      launch(rotary_forward<T>, grid_of_heads(), stream, static_cast<const T*>(args.x), args.positions, args.table,
             args.q_norm, args.k_norm, static_cast<T*>(args.y), heads());
    });
  }

  void run_backward(const Backward& args, const OpMemory& memory, Stream& stream) override {
    require(!d_.inference, ErrorCode::internal,
            "a rotary embedding was planned for inference, and backward was called");
    const bool accumulate = args.dx_mode == GradientMode::accumulate, wants_dx = args.dx_mode != GradientMode::skip;
    auto* const partial = static_cast<float*>(memory.workspace);
    dispatch(d_.dtype, [&]<typename T>(T*) {
      const auto* const dy = static_cast<const T*>(args.dy);
      auto* const dx = wants_dx ? static_cast<T*>(args.dx) : nullptr;
      if (d_.norm)
        launch(rotary_norm_backward<T>,
               {.blocks = static_cast<unsigned>(n_blocks_),
                .threads = kThreads,
                .blocks_y = 3,
                .work = {.kind = "elements",
                         .bytes = moved_bytes(3, d_.rows * (d_.heads + 2 * d_.kv_heads), d_.head_dim, sizeof(T))}},
               stream, dy, static_cast<const T*>(args.x), args.positions, args.table, args.q_norm, args.k_norm, dx,
               accumulate, partial, heads());
      else if (wants_dx)
        launch(rotary_backward<T>, grid_of_heads(), stream, dy, args.positions, args.table, dx, accumulate, heads());
    });
    if (!d_.norm) return;
    const auto add = [&](const float* of_kind, float* target, GradientMode mode) {
      if (mode == GradientMode::skip) return;
      launch(add_partial, {.blocks = 1, .threads = RotaryDescription::kMaxHeadDim, .work = {.kind = "small"}}, stream,
             of_kind, target, mode == GradientMode::accumulate, n_partial(), static_cast<int>(d_.head_dim));
    };
    add(partial, args.dq_norm, args.dq_norm_mode);
    add(partial + n_partial() * d_.head_dim, args.dk_norm, args.dk_norm_mode);
  }

 private:
  static constexpr std::int64_t kMinRows = 16, kMaxBlocks = 128;

  std::int64_t n_partial() const { return n_blocks_ * std::int64_t{kWarps}; }
  Grid grid_of_heads() const {
    const std::int64_t n = d_.rows * (d_.heads + 2 * d_.kv_heads);
    return {.blocks = static_cast<unsigned>((n + kWarps - 1) / kWarps),
            .threads = kThreads,
            .work = {.kind = "elements", .bytes = moved_bytes(2, n, d_.head_dim, size_bytes(d_.dtype))}};
  }
  Heads heads() const {
    return {.rows = d_.rows,
            .heads = d_.heads,
            .kv_heads = d_.kv_heads,
            .max_positions = d_.max_positions,
            .n_pairs = static_cast<int>(d_.head_dim / 2),
            .interleaved = d_.pairs == RotaryPairs::interleaved,
            .norm = d_.norm,
            .epsilon = d_.epsilon,
            .weight_offset = d_.weight_offset};
  }

  std::int64_t n_blocks_;  // blocks of rows; only with norms
};

}  // namespace

std::unique_ptr<Rotary> make_rotary(const RotaryDescription& d, const CudaContext& context) {
  require(d.rows * (d.heads + 2 * d.kv_heads) < (std::int64_t{1} << 34), ErrorCode::op_description,
          "a rotary embedding of {} rows of {} heads is too large for one launch", d.rows, d.heads + 2 * d.kv_heads);
  dispatch(d.dtype, [](auto*) {});
  return std::make_unique<CudaRotary>(d, context);
}

}  // namespace lockstep::cuda
