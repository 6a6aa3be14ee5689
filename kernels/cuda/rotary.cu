// Rotary position embedding (lockstep/ops/rotary.h). The smallest power of two of threads that suffices computes a
// head, each of them kN neighbouring pairs: two loads of 16 bytes. The norm of a head is a sum over these threads. In
// every step a thread has the same pairs, so that x, dy and dx may share memory. The gradients of the norms' weights
// have two stages: each thread block adds up its heads of a block of rows, and a second kernel adds these sums. Blocks
// of rows depend on the number of rows alone, so the sums have the same bits on every device.
//
// Bytes moved, where E is the size of x: forward 2E, and backward 2E or with norms 3E. If the result takes the place of
// x or dy, values are neither read nor written. No kernel can move less. The table stays in the caches: it is read once
// for kHeads heads.
#include <algorithm>
#include <bit>
#include <memory>

#include "kernels/cuda/base/block_sum.h"
#include "kernels/cuda/base/context.h"
#include "kernels/cuda/base/conversions.h"
#include "kernels/cuda/base/fast_divide.h"
#include "kernels/cuda/base/rows.h"
#include "kernels/cuda/matmul_few_rows.h"
#include "lockstep/ops/rotary.h"

namespace lockstep::cuda {
namespace {

constexpr unsigned kThreads = 256;
constexpr unsigned kHeads = 4;  // neighbouring heads of a row, which a thread loads together
constexpr int kMaxPairs = RotaryDescription::kMaxHeadDim / 2;

/// What the kernels know about the shape.
struct Heads {
  std::uint32_t rows = 0, heads = 0, rotated = 0, all = 0;  // heads: of queries; rotated: and of keys
  std::uint32_t n = 0;      // the first n of all are computed, and not the values if they stay
  FastDivide by_batches{};  // of kHeads of n
  FastDivide by_queries{}, by_keys{};
  int n_pairs = 0;
  unsigned threads = 32;  // of a head
  std::int64_t max_positions = 0;
  bool interleaved = false;
  int step = 1, to_second = 0;  // from one pair to the next, and from kN first numbers to kN second (or next) ones
  float epsilon = 0, weight_offset = 0;

  Heads(const RotaryDescription& d, int pairs_of_thread, bool values_stay)
      : rows(static_cast<std::uint32_t>(d.rows)),
        heads(static_cast<std::uint32_t>(d.heads)),
        rotated(static_cast<std::uint32_t>(d.heads + d.kv_heads)),
        all(static_cast<std::uint32_t>(d.heads + 2 * d.kv_heads)),
        n(values_stay ? rotated : all),
        by_batches((n + kHeads - 1) / kHeads),
        by_queries(heads),
        by_keys(rotated - heads),
        n_pairs(static_cast<int>(d.head_dim / 2)),
        threads(std::min(std::bit_ceil(static_cast<unsigned>((n_pairs + pairs_of_thread - 1) / pairs_of_thread)), 32u)),
        max_positions(d.max_positions),
        interleaved(d.pairs == RotaryPairs::interleaved),
        step(interleaved ? 2 : 1),
        to_second(interleaved ? pairs_of_thread : n_pairs),
        epsilon(d.epsilon),
        weight_offset(d.weight_offset) {}
  __host__ __device__ unsigned of_block() const { return kThreads / threads; }
  __device__ unsigned lane() const { return threadIdx.x % threads; }
  /// The first element of a head.
  __device__ std::int64_t at(std::int64_t row, unsigned h) const { return (row * all + h) * 2 * n_pairs; }
};

/// The pairs of a head that a thread has: kN neighbouring ones, or single ones at a distance of heads.threads. Those
/// beyond the head are zero.
template <int kN>
struct Head {
  static constexpr int kParts = kN == 1 ? kMaxPairs / 32 : 1, kPairs = kN * kParts;
  Floats<kPairs> first, second;

  /// Calls f(j, pair) for each part: pairs j, ..., j + kN - 1 here are `pair` and its neighbours of the head.
  template <typename F>
  static __device__ void for_parts(const Heads& heads, const F& f) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int pair = static_cast<int>(heads.lane() + part * heads.threads) * kN;
      if (pair < heads.n_pairs) f(part * kN, pair);
    }
  }
};

/// The same as stored, until it is used. The weights of norms, which are fp32, become floats at once.
template <typename T, int kN>
struct StoredHead {
  using Part = std::conditional_t<kN == 1 || kN == Pack<T>::kSize, Vector<T, kN>, Floats<kN>>;
  Part a[Head<kN>::kParts], b[Head<kN>::kParts];
};
template <int kN, typename T>
__device__ inline StoredHead<T, kN> load_stored(const T* source, const Heads& heads) {
  StoredHead<T, kN> head{};
  Head<kN>::for_parts(heads, [&](int j, int pair) {
    const auto load = [&](const T* part) {
      if constexpr (std::is_same_v<typename StoredHead<T, kN>::Part, Floats<kN>>)
        return load_floats<kN>(part);
      else
        return load_vector<kN>(part);
    };
    const T* const begin = source + heads.step * pair;
    head.a[j / kN] = load(begin);
    head.b[j / kN] = load(begin + heads.to_second);
  });
  return head;
}
template <int kN, typename T>
__device__ inline Head<kN> to_floats(const StoredHead<T, kN>& stored, const Heads& heads) {
  Head<kN> head;
#pragma unroll
  for (int j = 0; j < Head<kN>::kPairs; ++j) {
    const auto &a = stored.a[j / kN], &b = stored.b[j / kN];
    const int i = j % kN, k = 2 * i;  // k and k + 1 of a and then b, if pairs are neighbours
    head.first[j] = !heads.interleaved ? a[i] : k < kN ? a[k % kN] : b[k % kN];
    head.second[j] = !heads.interleaved || kN == 1 ? b[i] : k < kN ? a[(k + 1) % kN] : b[(k + 1) % kN];
  }
  return head;
}
template <int kN, typename T>
__device__ inline Head<kN> load_head(const T* source, const Heads& heads) {
  return to_floats<kN>(load_stored<kN>(source, heads), heads);
}

template <int kN, typename T>
__device__ inline void store_head(const Head<kN>& head, const Heads& heads, bool accumulate, T* target) {
  Head<kN> before{};
  if (accumulate) before = load_head<kN>(static_cast<const T*>(target), heads);
  Head<kN>::for_parts(heads, [&](int j, int pair) {
    Floats<kN> a, b;
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      a[i] = head.first[j + i] + before.first[j + i];
      b[i] = head.second[j + i] + before.second[j + i];
    }
    if (heads.interleaved && kN > 1) {
      const Floats<kN> first = a, second = b;
#pragma unroll
      for (int k = 0; k < 2 * kN; ++k) (k < kN ? a : b)[k % kN] = (k % 2 == 0 ? first : second)[k / 2];
    }
    T* const begin = target + heads.step * pair;
    store_floats(begin, a);
    store_floats(begin + heads.to_second, b);
  });
}

/// Cosines and sines of a thread's pairs. A `direction` of -1 rotates back.
template <int kN>
__device__ inline Head<kN> load_angles(const float* table, std::int32_t position, float direction, const Heads& heads) {
  const std::int64_t last = heads.max_positions - 1;
  const std::int64_t row = position < 0 ? 0 : position > last ? last : position;
  const float* const cosines = table + row * 2 * heads.n_pairs;
  Head<kN> angles{};
  Head<kN>::for_parts(heads, [&](int j, int pair) {
    const Floats<kN> cosine = load_floats<kN>(cosines + pair), sine = load_floats<kN>(cosines + heads.n_pairs + pair);
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      angles.first[j + i] = cosine[i];
      angles.second[j + i] = direction * sine[i];
    }
  });
  return angles;
}
template <int kN>
__device__ inline void rotate(Head<kN>& head, const Head<kN>& angles) {
#pragma unroll
  for (int j = 0; j < Head<kN>::kPairs; ++j) {
    const float first = head.first[j], second = head.second[j];
    head.first[j] = first * angles.first[j] - second * angles.second[j];
    head.second[j] = second * angles.first[j] + first * angles.second[j];
  }
}

/// All lanes of a warp must call it.
template <int kN>
__device__ inline float mean_product(const Head<kN>& a, const Head<kN>& b, const Heads& heads) {
  float sum = 0;
#pragma unroll
  for (int j = 0; j < Head<kN>::kPairs; ++j) sum += a.first[j] * b.first[j] + a.second[j] * b.second[j];
  for (int distance = static_cast<int>(heads.threads) / 2; distance > 0; distance /= 2)
    sum += __shfl_xor_sync(kAllLanes, sum, distance);
  return sum / static_cast<float>(2 * heads.n_pairs);
}
/// 1 / sqrt(mean of squares + epsilon); the normalised head is this times the head.
template <int kN>
__device__ inline float inverse_rms(const Head<kN>& head, const Heads& heads) {
  return 1.0f / sqrtf(mean_product(head, head, heads) + heads.epsilon);
}
/// The factors of queries or keys after their norm.
template <int kN>
__device__ inline Head<kN> load_weight(const float* weight, const Heads& heads) {
  Head<kN> head = load_head<kN>(weight, heads);
#pragma unroll
  for (int j = 0; j < Head<kN>::kPairs; ++j) {
    head.first[j] += heads.weight_offset;
    head.second[j] += heads.weight_offset;
  }
  return head;
}
/// head *= factor * by
template <int kN>
__device__ inline void multiply(Head<kN>& head, float factor, const Head<kN>& by) {
#pragma unroll
  for (int j = 0; j < Head<kN>::kPairs; ++j) {
    head.first[j] *= factor * by.first[j];
    head.second[j] *= factor * by.second[j];
  }
}

/// Forward, and with a `direction` of -1 backward without norms. Values are copied.
template <typename T, int kN, bool kNorm>
__global__ void __launch_bounds__(kThreads, 2)
    rotary_rows(const T* x, const std::int32_t* positions, const float* table, const float* q_norm, const float* k_norm,
                T* y, bool accumulate, float direction, const Heads heads) {
  const std::uint32_t batch = blockIdx.x * heads.of_block() + threadIdx.x / heads.threads;
  const std::uint32_t row = heads.by_batches.quotient(batch);
  const std::uint32_t first = kHeads * heads.by_batches.remainder(batch, row);
  const std::uint32_t end = row < heads.rows ? heads.n : 0;  // none beyond the last row
  Head<kN> angles{};
  StoredHead<T, kN> stored[kHeads] = {};
#pragma unroll
  for (unsigned i = 0; i < kHeads; ++i)
    if (first + i < end) stored[i] = load_stored<kN>(x + heads.at(row, first + i), heads);
  if (first < end) angles = load_angles<kN>(table, positions[row], direction, heads);
#pragma unroll
  for (unsigned i = 0; i < kHeads; ++i) {
    const std::uint32_t h = first + i;
    Head<kN> head = to_floats<kN>(stored[i], heads);
    if constexpr (kNorm) {
      const float inverse = inverse_rms(head, heads);
      if (h < heads.rotated) multiply(head, inverse, load_weight<kN>(h < heads.heads ? q_norm : k_norm, heads));
    }
    if (h < heads.rotated) rotate(head, angles);
    if (h < end) store_head(head, heads, accumulate, y + heads.at(row, h));
  }
}

/// Backward with norms. Each thread block has a block of rows, and the heads of queries (blockIdx.y 0), keys (1) or
/// values (2). `partial` is (2, blocks, head_dim). If `dx` is null, it is not computed.
template <typename T, int kN>
__global__ void __launch_bounds__(kThreads, 2)
    rotary_norm_backward(const T* dy, const T* x, const std::int32_t* positions, const float* table,
                         const float* q_norm, const float* k_norm, T* dx, bool accumulate, float* partial,
                         const Heads heads) {
  constexpr int kPairs = Head<kN>::kPairs;
  const unsigned kind = blockIdx.y;
  const std::uint32_t n_heads = kind == 0 ? heads.heads : heads.rotated - heads.heads;
  const std::uint32_t first_head = kind == 0 ? 0 : heads.heads + (kind - 1) * n_heads;
  const std::int64_t begin = std::int64_t{heads.rows} * blockIdx.x / gridDim.x;
  const std::int64_t end = std::int64_t{heads.rows} * (blockIdx.x + 1) / gridDim.x;
  const auto n = static_cast<std::uint32_t>(end - begin) * n_heads;
  const FastDivide by_heads = kind == 0 ? heads.by_queries : heads.by_keys;
  Head<kN> weight{}, sum{};
  if (kind < 2) weight = load_weight<kN>(kind == 0 ? q_norm : k_norm, heads);
  for (std::uint32_t base = 0; base < n; base += heads.of_block()) {
    const std::uint32_t i = base + threadIdx.x / heads.threads;
    const std::uint32_t row_in_block = by_heads.quotient(i);
    const std::int64_t row = begin + row_in_block;
    const std::int64_t at = heads.at(row, first_head + by_heads.remainder(i, row_in_block));
    Head<kN> gradient{}, normalized{}, angles{};
    if (i < n) gradient = load_head<kN>(dy + at, heads);
    if (kind < 2) {
      if (i < n) {
        normalized = load_head<kN>(x + at, heads);
        angles = load_angles<kN>(table, positions[row], -1, heads);
      }
      rotate(gradient, angles);
      const float of_head = inverse_rms(normalized, heads), inverse = i < n ? of_head : 0.0f;  // epsilon may be 0
#pragma unroll
      for (int j = 0; j < kPairs; ++j) {
        normalized.first[j] *= inverse;
        normalized.second[j] *= inverse;
        sum.first[j] += gradient.first[j] * normalized.first[j];
        sum.second[j] += gradient.second[j] * normalized.second[j];
      }
      multiply(gradient, 1, weight);
      const float mean = mean_product(gradient, normalized, heads);
#pragma unroll
      for (int j = 0; j < kPairs; ++j) {
        gradient.first[j] = inverse * (gradient.first[j] - normalized.first[j] * mean);
        gradient.second[j] = inverse * (gradient.second[j] - normalized.second[j] * mean);
      }
    }
    if (dx != nullptr && i < n) store_head(gradient, heads, accumulate, dx + at);
  }
  if (kind == 2) return;
  partial += (std::int64_t{kind} * gridDim.x + blockIdx.x) * 2 * heads.n_pairs;
  for (const bool is_second : {false, true})
    add_lanes<kThreads>(is_second ? sum.second : sum.first, heads.threads, heads.of_block(),
                        [&](unsigned i, float total) {
                          const auto thread = static_cast<int>(i / kPairs), j = static_cast<int>(i % kPairs);
                          const int pair = kN > 1 ? thread * kN + j : thread + j * static_cast<int>(heads.threads);
                          if (pair >= heads.n_pairs) return;
                          const int distance = heads.interleaved ? 1 : heads.n_pairs;
                          partial[heads.step * pair + (is_second ? distance : 0)] = total;
                        });
}

class CudaRotary final : public CudaOp<RotaryDescription> {
 public:
  CudaRotary(const RotaryDescription& d, const CudaContext& context)
      : PlannedOp(d, context), n_blocks_(std::min<std::int64_t>(kMaxBlocks, (d.rows + kMinRows - 1) / kMinRows)) {}

  OpMemoryRequirements memory_requirements() const override {
    if (d_.inference || !d_.norm) return {};
    return {.backward_workspace_bytes = static_cast<std::size_t>(2 * n_blocks_ * d_.head_dim) * sizeof(float)};
  }
  std::string describe() const override {
    return fmt::format("{} pairs: own kernels{}", name(d_.pairs), d_.norm ? "; norms fused" : "");
  }

  void run_forward(const Forward& args, const OpMemory&, Stream& stream) override {
    if (!FewRows::rotate(d_, args)) rotate_rows(args.x, args, args.y, GradientMode::overwrite, 1, stream);
  }

  void run_backward(const Backward& args, const OpMemory& memory, Stream& stream) override {
    require(!d_.inference, ErrorCode::internal,
            "a rotary embedding was planned for inference, and backward was called");
    if (!d_.norm) return rotate_rows(args.dy, args, args.dx, args.dx_mode, -1, stream);
    auto* const partial = static_cast<float*>(memory.workspace);
    void* const dx = args.dx_mode != GradientMode::skip ? args.dx : nullptr;
    const bool values_stay = dx == nullptr || dx == args.dy, accumulate = args.dx_mode == GradientMode::accumulate;
    const int n_passes = 2 + (dx != nullptr ? 1 : 0) + (accumulate ? 1 : 0);
    with_pairs(
        [&]<typename T, int kN>(T*, std::integral_constant<int, kN>) {
          const Heads heads(d_, kN, values_stay);
          launch(rotary_norm_backward<T, kN>, grid(n_blocks_, values_stay ? 2 : 3, kN, heads, n_passes), stream,
                 static_cast<const T*>(args.dy), static_cast<const T*>(args.x), args.positions, args.table, args.q_norm,
                 args.k_norm, static_cast<T*>(dx), accumulate, partial, heads);
        },
        args.dy, args.x, args.table, args.q_norm, args.k_norm, dx);
    const auto add = [&](const float* of_kind, float* target, GradientMode mode) {
      if (mode != GradientMode::skip)
        add_partial_sums(of_kind, n_blocks_, d_.head_dim, target, mode == GradientMode::accumulate, stream);
    };
    add(partial, args.dq_norm, args.dq_norm_mode);
    add(partial + n_blocks_ * d_.head_dim, args.dk_norm, args.dk_norm_mode);
  }

 private:
  static constexpr std::int64_t kMinRows = 16, kMaxBlocks = 512;

  Grid grid(std::int64_t blocks, unsigned blocks_y, int pairs_at_once, const Heads& heads, int n_passes) const {
    return {.blocks = static_cast<unsigned>(blocks),
            .threads = kThreads,
            .blocks_y = blocks_y,
            .work = {.kind = pairs_at_once > 1 ? "packs" : "elements",
                     .bytes = moved_bytes(n_passes, d_.rows * heads.n, d_.head_dim, size_bytes(d_.dtype))}};
  }
  /// Calls f with the type and the number of pairs that a thread loads at once.
  template <typename F, typename... Pointers>
  void with_pairs(const F& f, const Pointers*... pointers) const {
    dispatch(d_.dtype, [&]<typename T>(T* type) {
      if (allows_packs<T>(d_.head_dim / 2, pointers...))
        f(type, std::integral_constant<int, Pack<T>::kSize>{});
      else
        f(type, std::integral_constant<int, 1>{});
    });
  }

  template <typename Args>
  void rotate_rows(const void* x, const Args& args, void* y, GradientMode mode, float direction, Stream& stream) {
    if (mode == GradientMode::skip) return;
    with_pairs(
        [&]<typename T, int kN>(T*, std::integral_constant<int, kN>) {
          const Heads heads(d_, kN, x == y && mode == GradientMode::overwrite);
          const std::int64_t n = d_.rows * ((heads.n + kHeads - 1) / kHeads), of_block = heads.of_block();
          launch(d_.norm ? rotary_rows<T, kN, true> : rotary_rows<T, kN, false>,
                 grid((n + of_block - 1) / of_block, 1, kN, heads, mode == GradientMode::accumulate ? 3 : 2), stream,
                 static_cast<const T*>(x), args.positions, args.table, args.q_norm, args.k_norm, static_cast<T*>(y),
                 mode == GradientMode::accumulate, direction, heads);
        },
        x, args.table, args.q_norm, args.k_norm, y);
  }

  std::int64_t n_blocks_;  // blocks of rows; only with norms
};

}  // namespace

std::unique_ptr<Rotary> make_rotary(const RotaryDescription& d, const CudaContext& context) {
  require(d.rows * (d.heads + 2 * d.kv_heads) < (std::int64_t{1} << 31), ErrorCode::op_description,
          "a rotary embedding of {} rows of {} heads is too large for one launch", d.rows, d.heads + 2 * d.kv_heads);
  dispatch(d.dtype, [](auto*) {});
  return std::make_unique<CudaRotary>(d, context);
}

}  // namespace lockstep::cuda
