// matmul_few_rows.h explains it. One block of 16 warps per multiprocessor. In a product, a warp computes one or four
// columns: it reads rows of the weight, 16 bytes per lane, past the L1 cache, which keeps the source. Bytes moved: the
// weights once, and the keys and values of a token once for each of its heads, from the L2 cache. What all rows read
// and write besides is small.
#include "kernels/cuda/matmul_few_rows.h"

#include <algorithm>
#include <cmath>

#include "kernels/cuda/activation_functions.h"
#include "kernels/cuda/base/block_sum.h"
#include "kernels/cuda/base/rows.h"
#include "lockstep/workspace.h"

#ifdef __CUDACC__
#include <cooperative_groups.h>
#endif

namespace lockstep::cuda {
namespace {

constexpr unsigned kThreads = 512, kWarps = kThreads / 32;
constexpr int kTile = 64;  // keys that a warp attends to at a time
template <int kRows>
constexpr int kColumns = kRows == 1 ? 4 : 2;                // of a warp, if all warps have work
constexpr unsigned kLine = 128, kMostPrefetched = 4 << 20;  // bytes: a cache line, and what arrives during one barrier
constexpr std::size_t kMaxWorkspace = 64 << 20;             // bytes
constexpr double kBarrierSteps = 4;  // loads that wait for each other: those of a barrier, and the first of a stage

/// The stages of a launch, as an argument of the kernel: of at most 32,764 bytes on a device.
constexpr std::size_t kMostStages = 250;
static_assert(kMostStages * sizeof(Stage) < 32700 && std::is_trivially_copyable_v<Stage>);
#ifdef __CUDACC__
struct Stages {
  alignas(Stage) unsigned char bytes[kMostStages * sizeof(Stage)];
  explicit Stages(const std::vector<Stage>& stages) { memcpy(bytes, stages.data(), stages.size() * sizeof(Stage)); }
  __device__ const Stage& operator[](int i) const { return reinterpret_cast<const Stage*>(bytes)[i]; }
};
#else
struct Stages {
  const Stage* list;
  explicit Stages(const std::vector<Stage>& stages) : list(stages.data()) {}
  const Stage& operator[](int i) const { return list[i]; }
};
#endif

__device__ inline int thread_number() { return static_cast<int>(blockIdx.x * kThreads + threadIdx.x); }
__device__ inline int n_threads() { return static_cast<int>(gridDim.x * kThreads); }
__device__ inline int lane_number() { return static_cast<int>(threadIdx.x % 32); }

/// Of a weight: 16 bytes that are read once.
template <int kN, typename T>
__device__ inline Vector<T, kN> load_once(const T* source) {
#ifdef __CUDA_ARCH__
  Vector<T, kN> vector;
  asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(vector.words[0]), "=r"(vector.words[1]), "=r"(vector.words[2]), "=r"(vector.words[3])
      : "l"(source));
  return vector;
#else
  return load_vector<kN>(source);
#endif
}

template <typename T>
__device__ void take(const Stage& s) {
  const Stage::Product& p = s.product;
  for (int i = thread_number(); i < s.rows * s.width; i += n_threads()) {
    const std::int64_t id = p.ids[i / s.width];
    const T* const row = static_cast<const T*>(p.x) + id * s.width;
    static_cast<T*>(p.y)[i] = from_float<T>(id < 0 || id >= p.columns ? 0.0f : to_float(row[i % s.width]) * p.scale);
  }
}

__device__ inline float apply(ActivationFunction function, float x) {
  return function == ActivationFunction::silu   ? Silu::value(x)
         : function == ActivationFunction::gelu ? Gelu::value(x)
                                                : Relu::value(x);
}

template <typename T, int kN>
__device__ inline Floats<kN> add_residual(const Stage& s, std::int64_t at) {
  Floats<kN> sum = load_floats<kN>(static_cast<const T*>(s.product.x) + at);
  if (s.product.residual == nullptr) return sum;
  const Floats<kN> residual = load_floats<kN>(static_cast<const T*>(s.product.residual) + at);
#pragma unroll
  for (int i = 0; i < kN; ++i) sum[i] = to_float(from_float<T>(sum[i] + residual[i]));
  return sum;
}

/// Elements c, ..., c + kN - 1 of a row of the source, with the rounding of the op that would have stored them.
template <typename T, int kN>
__device__ inline Floats<kN> source_values(const Stage& s, int r, int c, const float* inverse_rms) {
  const Stage::Product& p = s.product;
  const T* const x = static_cast<const T*>(p.x);
  const std::int64_t begin = std::int64_t{r} * s.width;
  if (s.source == Stage::Source::plain) return load_floats<kN>(x + begin + c);
  Floats<kN> out;
  if (s.source == Stage::Source::norm) {
    const Floats<kN> sum = add_residual<T, kN>(s, begin + c), weight = load_floats<kN>(p.norm + c);
#pragma unroll
    for (int i = 0; i < kN; ++i) out[i] = to_float(from_float<T>(sum[i] * inverse_rms[r] * (p.offset + weight[i])));
  } else {
    const Floats<kN> gates = load_floats<kN>(x + 2 * begin + c), ups = load_floats<kN>(x + 2 * begin + s.width + c);
#pragma unroll
    for (int i = 0; i < kN; ++i) out[i] = to_float(from_float<T>(apply(s.function, gates[i]) * ups[i]));
  }
  return out;
}

template <typename T, int kRows, int kOutputs>
__device__ void multiply(const Stage& s, const float* inverse_rms) {
  constexpr int kN = Pack<T>::kSize;
  const Stage::Product& p = s.product;
  const T* const weight = static_cast<const T*>(p.weight);
  const int lane = lane_number();
  for (int first = thread_number() / 32 * kOutputs; first < p.columns; first += n_threads() / 32 * kOutputs) {
    float sums[kOutputs][kRows] = {};
#pragma unroll(kRows == 1 ? 4 : 1)
    for (int c = lane * kN; c < s.width; c += 32 * kN) {
      Vector<T, kN> w[kOutputs] = {};
#pragma unroll
      for (int j = 0; j < kOutputs; ++j)
        if (first + j < p.columns) w[j] = load_once<kN>(weight + std::int64_t{first + j} * s.width + c);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (r >= s.rows) continue;
        const Floats<kN> x = source_values<T, kN>(s, r, c, inverse_rms);
#pragma unroll
        for (int j = 0; j < kOutputs; ++j) {
#pragma unroll
          for (int i = 0; i < kN; ++i) sums[j][r] += w[j][i] * x[i];
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kOutputs; ++j) {
      if (first + j >= p.columns) continue;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (r >= s.rows) continue;
        float sum = warp_sum(sums[j][r]);
        if (lane != 0) continue;
        if (p.bias != nullptr) sum += to_float(static_cast<const T*>(p.bias)[first + j]);
        const std::int64_t at = std::int64_t{r} * p.columns + first + j;
        if (s.fp32_output)
          static_cast<float*>(p.out)[at] = sum;
        else
          static_cast<T*>(p.out)[at] = from_float<T>(sum);
      }
    }
  }
}

/// All blocks compute the same norms. Each stores a part of the source.
template <typename T, int kRows>
__device__ void multiply_source(const Stage& s) {
  constexpr int kN = Pack<T>::kSize;
  __shared__ float inverse_rms[kRows];
  const Stage::Product& p = s.product;
  for (int r = 0; s.source == Stage::Source::norm && r < s.rows; ++r) {
    float squares = 0;
    for (int c = static_cast<int>(threadIdx.x) * kN; c < s.width; c += static_cast<int>(kThreads) * kN) {
      const Floats<kN> sum = add_residual<T, kN>(s, std::int64_t{r} * s.width + c);
#pragma unroll
      for (int i = 0; i < kN; ++i) squares += sum[i] * sum[i];
    }
    squares = block_sum<kThreads>(squares);
    if (threadIdx.x == 0) inverse_rms[r] = 1.0f / sqrtf(squares / static_cast<float>(s.width) + p.epsilon);
  }
  __syncthreads();
  for (int at = thread_number() * kN; s.source != Stage::Source::plain && at < s.rows * s.width;
       at += n_threads() * kN) {
    store_floats(static_cast<T*>(p.y) + at, source_values<T, kN>(s, at / s.width, at % s.width, inverse_rms));
    if (p.residual != nullptr) store_floats(static_cast<T*>(p.s) + at, add_residual<T, kN>(s, at));
  }
  if (p.columns >= n_threads() / 32 * kColumns<kRows>)
    multiply<T, kRows, kColumns<kRows>>(s, inverse_rms);
  else
    multiply<T, kRows, 1>(s, inverse_rms);
}

/// A warp rotates a head.
template <typename T>
__device__ void rotate(const Stage& s) {
  constexpr int kParts = RotaryDescription::kMaxHeadDim / 2 / 32;
  const Stage::Rotate& a = s.rotate;
  const int n_pairs = s.width / 2, all = a.heads + 2 * a.kv_heads, lane = lane_number();
  for (int head = thread_number() / 32; head < s.rows * all; head += n_threads() / 32) {
    const int row = head / all, h = head % all;
    const T* const x = static_cast<const T*>(a.args.x) + std::int64_t{head} * s.width;
    T* const y = static_cast<T*>(a.args.y) + std::int64_t{head} * s.width;
    const int position = a.args.positions[row];
    const float* const table = a.args.table + std::int64_t{position < 0                 ? 0
                                                           : position < a.max_positions ? position
                                                                                        : a.max_positions - 1} *
                                                  s.width;
    const auto first = [&](int pair) { return a.interleaved ? 2 * pair : pair; };
    const auto second = [&](int pair) { return a.interleaved ? 2 * pair + 1 : pair + n_pairs; };
    float left[kParts] = {}, right[kParts] = {}, squares = 0;
#pragma unroll
    for (int j = 0; j < kParts; ++j) {
      const int pair = lane + 32 * j;
      if (pair >= n_pairs) continue;
      left[j] = to_float(x[first(pair)]);
      right[j] = to_float(x[second(pair)]);
      squares += left[j] * left[j] + right[j] * right[j];
    }
    squares = warp_sum(squares);
    const float inverse = 1.0f / sqrtf(squares / static_cast<float>(s.width) + a.epsilon);
    const float* const norm = h < a.heads ? a.args.q_norm : a.args.k_norm;
    const bool is_rotated = h < a.heads + a.kv_heads;
#pragma unroll
    for (int j = 0; j < kParts; ++j) {
      const int pair = lane + 32 * j;
      if (pair >= n_pairs) continue;
      float u = left[j], v = right[j], cosine = 1, sine = 0;
      if (is_rotated) {
        cosine = table[pair];
        sine = table[n_pairs + pair];
        if (norm != nullptr) {
          u *= inverse * (a.offset + norm[first(pair)]);
          v *= inverse * (a.offset + norm[second(pair)]);
        }
      }
      y[first(pair)] = from_float<T>(u * cosine - v * sine);
      y[second(pair)] = from_float<T>(v * cosine + u * sine);
    }
  }
}

/// What both stages of attention know about a row.
struct Keys {
  int begin = 0, end = 0;  // positions that it attends to; none: it is padding
  __device__ Keys(const Stage::Attend& a, int row) {
    const int slot = a.args.slot[row], position = a.args.position[row];
    if (slot < 0 || slot >= a.slots || position < 0 || position >= a.capacity) return;
    end = position + 1;
    begin = a.window > 0 && end > a.window ? end - a.window : 0;
  }
  __device__ int n_tiles() const { return (end - begin + kTile - 1) / kTile; }
};

/// A warp attends to a tile of keys with one head of one row. Keys and values of the new rows are read where they come
/// from, since they are stored in the cache at the same time.
template <typename T>
__device__ void attend(const Stage& s) {
  constexpr int kN = Pack<T>::kSize, kParts = static_cast<int>(AttentionDescription::kMaxHeadDim) / 32;
  const Stage::Attend& a = s.attend;
  const int n = s.width, lane = lane_number(), group = a.heads / a.kv_heads;
  const std::int64_t packed = std::int64_t{a.heads + 2 * a.kv_heads} * n;
  const T* const qkv = static_cast<const T*>(a.args.qkv);
  const std::int64_t values = std::int64_t{a.slots} * a.kv_heads * a.capacity * n;
  const auto in_cache = [&](int slot, int head, int position) {
    return static_cast<T*>(a.args.cache) + ((std::int64_t{slot} * a.kv_heads + head) * a.capacity + position) * n;
  };
  for (int i = thread_number(); i < s.rows * a.kv_heads * n; i += n_threads()) {
    const int row = i / (a.kv_heads * n), column = i % (a.kv_heads * n);
    if (Keys(a, row).end == 0) continue;
    T* const target = in_cache(a.args.slot[row], column / n, a.args.position[row]) + column % n;
    const T* const source = qkv + row * packed + a.heads * n + column;
    target[0] = source[0];
    target[values] = source[a.kv_heads * n];
  }
  for (int item = thread_number() / 32; item < s.rows * a.heads * a.tiles; item += n_threads() / 32) {
    const int head = item / a.tiles, row = head / a.heads, of_keys = head % a.heads / group;
    const Keys keys(a, row);
    const int first = keys.begin + item % a.tiles * kTile, count = keys.end - first < kTile ? keys.end - first : kTile;
    if (count <= 0) continue;
    const T* const query = qkv + row * packed + head % a.heads * n;
    const T* v[2] = {};
    float scores[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int at = first + lane + 32 * j, own = a.args.slot[row];
      if (at >= first + count) continue;
      const int given = a.args.cache_indirection[std::int64_t{own} * a.capacity + at];
      const int slot = at == keys.end - 1 || given < 0 || given >= a.slots ? own : given;
      const T* k = in_cache(slot, of_keys, at);
      v[j] = k + values;
      for (int r = 0; r < s.rows; ++r)
        if (a.args.slot[r] == slot && a.args.position[r] == at) {
          k = qkv + r * packed + (a.heads + of_keys) * n;
          v[j] = k + a.kv_heads * n;
        }
      float sum = 0;
      for (int c = 0; c < n; c += kN) {
        const Floats<kN> q = load_floats<kN>(query + c), x = load_floats<kN>(k + c);
#pragma unroll
        for (int i = 0; i < kN; ++i) sum += q[i] * a.scale * x[i];
      }
      scores[j] = sum;
    }
    const float most = warp_max(scores[0] > scores[1] ? scores[0] : scores[1]);
    const float low = expf(scores[0] - most), high = expf(scores[1] - most);  // 0 beyond the last key
    const float total = warp_sum(low + high);
    float sums[kParts] = {};
    for (int i = 0; i < count; ++i) {
      const float p = __shfl_sync(kAllLanes, i < 32 ? low : high, i % 32);
      const auto bits = __shfl_sync(kAllLanes, reinterpret_cast<unsigned long long>(i < 32 ? v[0] : v[1]), i % 32);
      const T* const value = reinterpret_cast<const T*>(bits);
#pragma unroll
      for (int j = 0; j < kParts; ++j)
        if (lane + 32 * j < n) sums[j] += p * to_float(value[lane + 32 * j]);
    }
    float* const partial = a.partials + std::int64_t{item} * (2 + n);
    if (lane == 0) {
      partial[0] = most;
      partial[1] = total;
    }
#pragma unroll
    for (int j = 0; j < kParts; ++j)
      if (lane + 32 * j < n) partial[2 + lane + 32 * j] = sums[j];
  }
}

/// Adds up the tiles of a head, in their order.
template <typename T>
__device__ void combine(const Stage& s) {
  const Stage::Attend& a = s.attend;
  const int n = s.width;
  for (int i = thread_number(); i < s.rows * a.heads * n; i += n_threads()) {
    const int head = i / n, n_tiles = Keys(a, head / a.heads).n_tiles();
    float most = -INFINITY, total = 0, value = 0;
    for (int tile = 0; tile < n_tiles; ++tile) {
      const float* const partial = a.partials + (std::int64_t{head} * a.tiles + tile) * (2 + n);
      const float next = partial[0] > most ? partial[0] : most;
      const float before = expf(most - next), added = expf(partial[0] - next);
      total = total * before + partial[1] * added;
      value = value * before + partial[2 + i % n] * added;
      most = next;
    }
    static_cast<T*>(a.args.y)[i] = from_float<T>(n_tiles > 0 ? value / total : 0.0f);
  }
}

template <typename T, int kRows>
__global__ void __launch_bounds__(kThreads, 1) run_stages(const __grid_constant__ Stages stages, int first, int end) {
  for (int i = first; i < end; ++i) {
    const Stage& s = stages[i];
    switch (s.kind) {
      case Stage::Kind::take:
        take<T>(s);
        break;
      case Stage::Kind::product:
        multiply_source<T, kRows>(s);
        break;
      case Stage::Kind::rotate:
        rotate<T>(s);
        break;
      case Stage::Kind::attend:
        attend<T>(s);
        break;
      case Stage::Kind::combine:
        combine<T>(s);
        break;
    }
    if (i + 1 == end) return;
#ifdef __CUDA_ARCH__
    for (unsigned at = kLine * static_cast<unsigned>(thread_number()); at < s.n_prefetched;
         at += kLine * static_cast<unsigned>(n_threads()))
      asm volatile("prefetch.global.L2 [%0];" ::"l"(s.prefetched + at));
    cooperative_groups::this_grid().sync();
#endif
  }
}

bool overlap(const void* a, std::size_t a_bytes, const void* b, std::size_t b_bytes) {
  const auto begin = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p); };
  return a != nullptr && b != nullptr && begin(a) < begin(b) + b_bytes && begin(b) < begin(a) + a_bytes;
}

bool fits_packs(DType dtype, std::int64_t width) {
  return width % static_cast<std::int64_t>(16 / size_bytes(dtype)) == 0 && width < (std::int64_t{1} << 20);
}

Stage stage_of(Stage::Kind kind, std::int64_t rows, std::int64_t width) {
  Stage stage;
  stage.kind = kind;
  stage.rows = static_cast<int>(rows);
  stage.width = static_cast<int>(width);
  return stage;
}

double quotient(std::int64_t a, std::int64_t b) { return static_cast<double>((a + b - 1) / b); }

}  // namespace

void FewRows::begin(Stream& stream) {
  stream_ = &stream;
  current_ = this;
}

void FewRows::end() {
  launch_all();
  discard();
}

void FewRows::discard() noexcept {
  stages_.clear();
  work_ = {.kind = "columns"};
  if (current_ == this) current_ = nullptr;
}

FewRows* FewRows::list_for(std::int64_t rows, DType dtype) {
  auto* const list = static_cast<FewRows*>(current_);
  if (list == nullptr || rows > kFewRows) return nullptr;
  if (list->dtype_ != dtype || list->stages_.size() == kMostStages) list->launch_all();
  list->dtype_ = dtype;
  return list;
}

void FewRows::add(const Stage& stage, double bytes, double steps) {
  stages_.push_back(stage);
  work_.bytes += bytes;
  work_.steps += kBarrierSteps + steps;
}

bool FewRows::take(const EmbeddingDescription& d, const Embedding::Forward& args) {
  if (!d.inference || d.width >= (std::int64_t{1} << 20)) return false;
  FewRows* const list = list_for(d.rows, d.dtype);
  if (list == nullptr) return false;
  Stage stage = stage_of(Stage::Kind::take, d.rows, d.width);
  stage.product.x = args.weight;
  stage.product.ids = args.ids;
  stage.product.y = args.y;
  stage.product.scale = d.scale;
  stage.product.columns = static_cast<int>(d.vocabulary);
  list->add(stage, moved_bytes(2, d.rows, d.width, size_bytes(d.dtype)), 1);
  return true;
}

bool FewRows::normalize(const RmsNormDescription& d, const RmsNorm::Forward& args) {
  if (!d.inference || !fits_packs(d.dtype, d.width) ||
      !are_aligned(args.x, args.residual, args.weight, args.s, args.y) || args.y == args.x ||
      (d.residual && (args.s == args.x || args.s == args.residual)))
    return false;
  FewRows* const list = list_for(d.rows, d.dtype);
  if (list == nullptr) return false;
  Stage stage = stage_of(Stage::Kind::product, d.rows, d.width);
  stage.source = Stage::Source::norm;
  stage.product.x = args.x;
  stage.product.residual = d.residual ? args.residual : nullptr;
  stage.product.norm = args.weight;
  stage.product.s = d.residual ? args.s : nullptr;
  stage.product.y = args.y;
  stage.product.epsilon = d.epsilon;
  stage.product.offset = d.weight_offset;
  list->add(stage, moved_bytes(d.residual ? 4 : 2, d.rows, d.width, size_bytes(d.dtype)), 2);
  return true;
}

bool FewRows::gate(const GluDescription& d, const Glu::Forward& args) {
  if (!fits_packs(d.dtype, d.width) || !are_aligned(args.x, args.y)) return false;
  FewRows* const list = list_for(d.rows, d.dtype);
  if (list == nullptr) return false;
  Stage stage = stage_of(Stage::Kind::product, d.rows, d.width);
  stage.source = Stage::Source::glu;
  stage.function = d.function;
  stage.product.x = args.x;
  stage.product.y = args.y;
  list->add(stage, moved_bytes(3, d.rows, d.width, size_bytes(d.dtype)), 1);
  return true;
}

bool FewRows::multiply(const MatmulDescription& d, const Matmul::Forward& args) {
  if (!d.inference || d.activation != ActivationFunction::none || !fits_packs(d.dtype, d.in_features) ||
      d.out_features >= (std::int64_t{1} << 28) || !are_aligned(args.x, args.weight))
    return false;
  FewRows* const list = list_for(d.rows, d.dtype);
  if (list == nullptr) return false;
  const std::size_t element = size_bytes(d.dtype), out_element = d.fp32_output ? sizeof(float) : element;
  const auto bytes_of = [&](std::int64_t columns, std::size_t size) {
    return static_cast<std::size_t>(d.rows * columns) * size;
  };
  // The source of the product can be computed on the way, if no other block still reads what this product overwrites.
  const auto can_join = [&](const Stage& last) {
    const Stage::Product& p = last.product;
    if (last.kind != Stage::Kind::product || p.columns > 0 || p.y != args.x) return false;
    const std::size_t y_bytes = bytes_of(d.in_features, element);
    for (const void* used : {p.x, p.residual, static_cast<const void*>(p.s), static_cast<const void*>(p.y)})
      if (overlap(args.y, bytes_of(d.out_features, out_element), used, used == p.x ? 2 * y_bytes : y_bytes))
        return false;
    return true;
  };
  const std::int64_t warps = std::int64_t{list->context_.multiprocessors} * kWarps;
  const std::int64_t most = d.rows == 1 ? kColumns<1> : kColumns<static_cast<int>(kFewRows)>;
  const std::int64_t outputs = d.out_features >= warps * most ? most : 1;
  const double steps = quotient(d.out_features, warps * outputs) *
                       quotient(d.in_features, static_cast<std::int64_t>(4 * 32 * 16 / element));
  const double bytes = moved_bytes(1, d.out_features, d.in_features, element) +
                       moved_bytes(1, d.rows, d.in_features, element) +
                       moved_bytes(1, d.rows, d.out_features, out_element);
  const bool joins = !list->stages_.empty() && can_join(list->stages_.back());
  if (!joins) list->add(stage_of(Stage::Kind::product, d.rows, d.in_features), 0, 1);
  Stage& stage = list->stages_.back();
  if (!joins) stage.product.x = args.x;
  stage.fp32_output = d.fp32_output;
  stage.product.weight = args.weight;
  stage.product.bias = args.bias;
  stage.product.out = args.y;
  stage.product.columns = static_cast<int>(d.out_features);
  list->work_.bytes += bytes;
  list->work_.steps += steps;
  list->work_.flops += 2 * static_cast<double>(d.rows * d.in_features) * static_cast<double>(d.out_features);
  return true;
}

bool FewRows::rotate(const RotaryDescription& d, const Rotary::Forward& args) {
  if (!d.inference) return false;
  FewRows* const list = list_for(d.rows, d.dtype);
  if (list == nullptr) return false;
  Stage stage = stage_of(Stage::Kind::rotate, d.rows, d.head_dim);
  stage.rotate = {.args = args,
                  .heads = static_cast<int>(d.heads),
                  .kv_heads = static_cast<int>(d.kv_heads),
                  .max_positions = static_cast<int>(d.max_positions),
                  .epsilon = d.epsilon,
                  .offset = d.weight_offset,
                  .interleaved = d.pairs == RotaryPairs::interleaved};
  list->add(stage, moved_bytes(2, d.rows, d.row_size(), size_bytes(d.dtype)), 2);
  return true;
}

/// The tiles of keys of a row, at most.
static std::int64_t tiles_of(const CachedAttentionDescription& d) {
  return ((d.window > 0 ? std::min(d.capacity, d.window) : d.capacity) + kTile - 1) / kTile;
}

std::size_t FewRows::workspace_bytes(const CachedAttentionDescription& d) {
  const std::size_t bytes = static_cast<std::size_t>(d.rows * d.heads * tiles_of(d) * (2 + d.head_dim)) * sizeof(float);
  return d.rows <= kFewRows && fits_packs(d.dtype, d.head_dim) && bytes <= kMaxWorkspace ? bytes : 0;
}

bool FewRows::attend(const CachedAttentionDescription& d, const CachedAttention::Forward& args, void* workspace) {
  if (workspace_bytes(d) == 0 || !are_aligned(args.qkv, args.cache)) return false;
  FewRows* const list = list_for(d.rows, d.dtype);
  if (list == nullptr) return false;
  Stage stage = stage_of(Stage::Kind::attend, d.rows, d.head_dim);
  stage.attend = {.args = args,
                  .partials = static_cast<float*>(workspace),
                  .slots = static_cast<int>(d.slots),
                  .capacity = static_cast<int>(d.capacity),
                  .heads = static_cast<int>(d.heads),
                  .kv_heads = static_cast<int>(d.kv_heads),
                  .window = static_cast<int>(d.window),
                  .tiles = static_cast<int>(tiles_of(d)),
                  .scale = d.score_scale()};
  // As if the cache were full.
  const double element = static_cast<double>(size_bytes(d.dtype));
  const double keys = static_cast<double>(d.window > 0 ? std::min(d.capacity, d.window) : d.capacity);
  list->add(stage, 2 * static_cast<double>(d.rows * d.kv_heads * d.head_dim) * keys * element, 3 + kTile / 8);
  stage.kind = Stage::Kind::combine;
  list->add(stage, moved_bytes(1, d.rows, d.heads * d.head_dim, size_bytes(d.dtype)),
            static_cast<double>(tiles_of(d)) / 4);
  return true;
}

void FewRows::launch_all() {
  if (stages_.empty()) return;
  std::vector<Stage> stages;
  std::swap(stages, stages_);  // launch() calls this function
  const Launch work = std::exchange(work_, {.kind = "columns"});
  // Each barrier gets a part of the next product's weight.
  std::int64_t rows = 1;
  for (std::size_t i = 0, first = 0; i < stages.size(); ++i) {
    const Stage& s = stages[i];
    rows = std::max<std::int64_t>(rows, s.rows);
    if (s.kind != Stage::Kind::product || s.product.columns == 0) continue;
    std::size_t done = 0, all = static_cast<std::size_t>(s.product.columns) * static_cast<std::size_t>(s.width) *
                                size_bytes(dtype_);
    for (; first < i; ++first) {
      const std::size_t n = std::min<std::size_t>(all - done, kMostPrefetched);
      stages[first].prefetched = static_cast<const char*>(s.product.weight) + done;
      stages[first].n_prefetched = static_cast<unsigned>(n);
      done += n;
    }
  }
  const Stages argument(stages);
  const int n = static_cast<int>(stages.size());
  const Grid grid{.blocks = static_cast<unsigned>(context_.multiprocessors),
                  .threads = kThreads,
                  .is_cooperative = together_,
                  .work = work};
  dispatch(dtype_, [&]<typename T>(T*) {
    const auto kernel = rows == 1 ? run_stages<T, 1> : run_stages<T, static_cast<int>(kFewRows)>;
    for (int i = 0; i < n; i = together_ ? n : i + 1)
      launch(kernel, grid, *stream_, argument, i, together_ ? n : i + 1);
  });
}

}  // namespace lockstep::cuda
