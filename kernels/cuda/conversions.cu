#include "kernels/cuda/conversions.h"

#include "kernels/cuda/launch.h"
#include "kernels/cuda/numbers.h"

namespace lockstep::cuda {
namespace {

constexpr unsigned kThreads = 256;

unsigned most_blocks(const CudaContext& context) { return static_cast<unsigned>(context.multiprocessors) * 8; }

/// The first of this thread's items, and the distance to the next.
__device__ inline std::int64_t first_item() { return std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }
__device__ inline std::int64_t item_stride() { return std::int64_t{gridDim.x} * blockDim.x; }

// ---- fp32 to fp16 or bf16 -------------------------------------------------------------------------------------------

struct Pieces {
  Narrowing piece[3];
};

/// Eight numbers at a time: two loads and a store of 16 bytes.
template <typename T>
__device__ void narrow_packs(const Narrowing& piece) {
  const std::int64_t n_packs = piece.rows.n_rows * piece.rows.length / Pack<T>::kSize;
  T* target = static_cast<T*>(piece.target);
  for (std::int64_t i = first_item(); i < n_packs; i += item_stride()) {
    const Pack<float> low = load_pack(piece.source + 8 * i), high = load_pack(piece.source + 8 * i + 4);
    Pack<T> out;
    for (int j = 0; j < 4; ++j) {
      out.values[j] = from_float<T>(low.values[j]);
      out.values[4 + j] = from_float<T>(high.values[j]);
    }
    store_pack(target + 8 * i, out);
  }
}
template <typename T>
__device__ void narrow_rows(const Narrowing& piece) {
  const Rows rows = piece.rows;
  T* target = static_cast<T*>(piece.target);
  for (std::int64_t i = first_item(); i < rows.n_rows * rows.padded; i += item_stride()) {
    const std::int64_t row = i / rows.padded, column = i % rows.padded;
    target[i] = from_float<T>(column < rows.length ? piece.source[row * rows.length + column] : 0.0f);
  }
}
__host__ __device__ inline bool is_whole_packs(const Rows& rows, const void* a, const void* b) {
  return rows.length == rows.padded && rows.n_rows * rows.length % 8 == 0 &&
         (reinterpret_cast<std::uintptr_t>(a) | reinterpret_cast<std::uintptr_t>(b)) % 16 == 0;
}

template <typename T>
__global__ void narrow_pieces(Pieces pieces) {
  for (const Narrowing& piece : pieces.piece) {
    if (is_whole_packs(piece.rows, piece.source, piece.target))
      narrow_packs<T>(piece);
    else
      narrow_rows<T>(piece);
  }
}

// ---- fp16 or bf16 to fp32 -------------------------------------------------------------------------------------------

template <typename T, bool kAccumulate>
__global__ void widen_packs(const T* source, float* target, std::int64_t n_packs) {
  for (std::int64_t i = first_item(); i < n_packs; i += item_stride()) {
    const Pack<T> in = load_pack(source + 8 * i);
    for (int half = 0; half < 2; ++half) {
      Pack<float> out;
      if (kAccumulate) out = load_pack(target + 8 * i + 4 * half);
      for (int j = 0; j < 4; ++j) {
        const float value = to_float(in.values[4 * half + j]);
        out.values[j] = kAccumulate ? out.values[j] + value : value;
      }
      store_pack(target + 8 * i + 4 * half, out);
    }
  }
}
template <typename T, bool kAccumulate>
__global__ void widen_rows(const T* source, float* target, Rows rows) {
  for (std::int64_t i = first_item(); i < rows.n_rows * rows.length; i += item_stride()) {
    const std::int64_t row = i / rows.length, column = i % rows.length;
    const float value = to_float(source[row * rows.padded + column]);
    target[i] = kAccumulate ? target[i] + value : value;
  }
}

/// A thread a row, which it stores at once.
template <typename T, int kPadded>
__global__ void pad_each_row(const T* source, T* target, std::int64_t n_rows, int length) {
  struct alignas(kPadded * sizeof(T)) Row {
    T values[kPadded];
  };
  for (std::int64_t row = first_item(); row < n_rows; row += item_stride()) {
    Row out;
#pragma unroll
    for (int i = 0; i < kPadded; ++i) out.values[i] = i < length ? source[row * length + i] : from_float<T>(0.0f);
    reinterpret_cast<Row*>(target)[row] = out;
  }
}

// ---- Numbers for each channel ---------------------------------------------------------------------------------------

__global__ void sums_to_double(DoubleSums a, DoubleSums b) {
  for (std::int64_t i = first_item(); i < a.n; i += item_stride()) a.target[i] = a.source[i];
  for (std::int64_t i = first_item(); i < b.n; i += item_stride()) b.target[i] = b.source[i];
}

/// scale = gamma / stddev, bias = beta - mean * scale
__device__ void recover(const GammaBeta& norm) {
  for (std::int64_t c = first_item(); c < norm.channels; c += item_stride()) {
    const float scale = norm.scale_bias[c], bias = norm.scale_bias[norm.channels + c];
    norm.gamma_beta[c] = scale / norm.mean_inverse_stddev[norm.channels + c];
    norm.gamma_beta[norm.channels + c] = bias + norm.mean_inverse_stddev[c] * scale;
  }
}
__global__ void recover_both(GammaBeta a, GammaBeta b) {
  recover(a);
  recover(b);
}

constexpr int kColumns = 32;  // of a block; its other dimension are groups of rows

/// Each thread sums every eighth row of a column; eight such sums are then added in order.
template <typename T>
__global__ void add_columns(const T* values, float* sums, std::int64_t n_rows, std::int64_t n_columns,
                            bool accumulate) {
  __shared__ float partial[kThreads];
  const unsigned group = threadIdx.x / kColumns, n_groups = kThreads / kColumns;
  const std::int64_t column = std::int64_t{blockIdx.x} * kColumns + threadIdx.x % kColumns;
  float sum = 0;
  if (column < n_columns)
    for (std::int64_t row = group; row < n_rows; row += n_groups) sum += to_float(values[row * n_columns + column]);
  partial[threadIdx.x] = sum;
  __syncthreads();
  if (group != 0 || column >= n_columns) return;
  for (unsigned i = 1; i < n_groups; ++i) sum += partial[i * kColumns + threadIdx.x];
  sums[column] = accumulate ? sums[column] + sum : sum;
}

}  // namespace

void narrow(DType dtype, const std::array<Narrowing, 3>& pieces, const CudaContext& context, Stream& stream) {
  std::int64_t items = 0;
  for (const Narrowing& piece : pieces) {
    const bool packs = is_whole_packs(piece.rows, piece.source, piece.target);
    items = std::max(items, piece.rows.n_rows * piece.rows.padded / (packs ? 8 : 1));
  }
  if (items == 0) return;
  const Grid grid{.blocks = blocks_for(static_cast<std::size_t>(items), kThreads, most_blocks(context)),
                  .threads = kThreads};
  const Pieces all{{pieces[0], pieces[1], pieces[2]}};
  if (dtype == DType::fp16)
    launch(narrow_pieces<Half>, grid, stream, all);
  else
    launch(narrow_pieces<Bfloat16>, grid, stream, all);
}

namespace {

template <typename T, bool kAccumulate>
void widen_as(const T* source, float* target, const Rows& rows, const CudaContext& context, Stream& stream) {
  const std::int64_t n = rows.n_rows * rows.length;
  if (n == 0) return;
  const bool packs = is_whole_packs(rows, source, target);
  const Grid grid{.blocks = blocks_for(static_cast<std::size_t>(packs ? n / 8 : n), kThreads, most_blocks(context)),
                  .threads = kThreads};
  if (packs)
    launch(widen_packs<T, kAccumulate>, grid, stream, source, target, n / 8);
  else
    launch(widen_rows<T, kAccumulate>, grid, stream, source, target, rows);
}

}  // namespace

void widen(DType dtype, const void* source, float* target, const Rows& rows, bool accumulate,
           const CudaContext& context, Stream& stream) {
  const auto as = [&](const auto* typed) {
    using T = std::remove_cvref_t<decltype(*typed)>;
    if (accumulate)
      widen_as<T, true>(typed, target, rows, context, stream);
    else
      widen_as<T, false>(typed, target, rows, context, stream);
  };
  if (dtype == DType::fp16)
    as(static_cast<const Half*>(source));
  else
    as(static_cast<const Bfloat16*>(source));
}

void pad_rows(DType dtype, const void* source, void* target, const Rows& rows, const CudaContext& context,
              Stream& stream) {
  const Grid grid{.blocks = blocks_for(static_cast<std::size_t>(rows.n_rows), kThreads, most_blocks(context)),
                  .threads = kThreads};
  const auto as = [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const auto kernel = rows.padded == 4 ? pad_each_row<T, 4> : pad_each_row<T, 8>;
    launch(kernel, grid, stream, static_cast<const T*>(source), static_cast<T*>(target), rows.n_rows,
           static_cast<int>(rows.length));
  };
  if (dtype == DType::fp16)
    as(static_cast<Half*>(nullptr));
  else
    as(static_cast<Bfloat16*>(nullptr));
}

void to_double(const std::array<DoubleSums, 2>& pieces, const CudaContext& context, Stream& stream) {
  const std::int64_t n = std::max(pieces[0].n, pieces[1].n);
  launch(sums_to_double,
         {.blocks = blocks_for(static_cast<std::size_t>(n), kThreads, most_blocks(context)), .threads = kThreads},
         stream, pieces[0], pieces[1]);
}

void recover_gamma_beta(const std::array<GammaBeta, 2>& pieces, const CudaContext& context, Stream& stream) {
  const std::int64_t n = std::max(pieces[0].channels, pieces[1].channels);
  launch(recover_both,
         {.blocks = blocks_for(static_cast<std::size_t>(n), kThreads, most_blocks(context)), .threads = kThreads},
         stream, pieces[0], pieces[1]);
}

void sum_columns(const ColumnSums& shape, const void* values, float* sums, bool accumulate, const CudaContext&,
                 Stream& stream) {
  const Grid grid{.blocks = static_cast<unsigned>((shape.n_columns + kColumns - 1) / kColumns), .threads = kThreads};
  dispatch(shape.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    launch(add_columns<T>, grid, stream, static_cast<const T*>(values), sums, shape.n_rows, shape.n_columns,
           accumulate);
  });
}

}  // namespace lockstep::cuda
