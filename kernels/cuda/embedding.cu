// Embedding (lockstep/ops/embedding.h). Backward sorts pairs of id and position by the id, and adds up the runs of one
// id in two stages: first within tiles of the sorted list, then over the tiles that a run crosses. Up to 16,384 ids are
// sorted by counting, for each of them, those that come before it: n^2 comparisons, but one launch. More are sorted by
// a stable radix sort of 8 bits per pass, from the lowest. All orders depend on the ids alone, and there are no atomic
// additions. Bytes moved, where E is the size of y: forward 2E; backward E and the written rows of dweight (all rows if
// it is overwritten), which is the floor, and 16 n per pass of the radix sort for n ids. Launches of backward: 3 when
// counting, otherwise 3 and two for each pass; and one if dweight is overwritten.
#include <algorithm>
#include <bit>
#include <memory>

#include "kernels/cuda/base/items.h"
#include "kernels/cuda/base/row_major_layout.h"
#include "kernels/cuda/matmul_few_rows.h"
#include "lockstep/ops/embedding.h"
#include "lockstep/workspace.h"

namespace lockstep::cuda {
namespace {

constexpr unsigned kThreads = 256;
constexpr unsigned kBits = 8, kDigits = 1u << kBits;  // bits per pass of the radix sort; one thread for each digit
constexpr unsigned kSortTile = 512;                   // entries per block in the sort
constexpr unsigned kRunTile = 32;                     // entries per block in the sums of runs
constexpr unsigned kAhead = 8;                        // of these, entries whose loads are under way together
constexpr std::int64_t kMostCounted = 16384;          // ids for which comparing all is as fast as the radix sort
static_assert(kDigits == kThreads);

/// An id in the upper half, and a position in the lower half.
using Entry = std::uint64_t;
__device__ inline std::int64_t id_of(Entry entry) { return static_cast<std::int64_t>(entry >> 32); }
__device__ inline std::int64_t position_of(Entry entry) { return static_cast<std::int64_t>(entry & 0xffffffffu); }

// ---- Forward --------------------------------------------------------------------------------------------------------

/// One block per row.
template <typename T, bool kByPacks>
__global__ void __launch_bounds__(kThreads) take_rows(const std::int32_t* ids, const T* weight, T* y,
                                                      std::int64_t vocabulary, std::int64_t width, float scale) {
  const std::int64_t id = ids[blockIdx.x];
  const bool exists = id >= 0 && id < vocabulary;
  const T* const source = weight + (exists ? id : 0) * width;
  T* const target = y + std::int64_t{blockIdx.x} * width;
  if constexpr (kByPacks) {
    constexpr int kSize = Pack<T>::kSize;
    for (std::int64_t c = threadIdx.x; c < width / kSize; c += kThreads) {
      Pack<T> pack{};
      if (exists) pack = load_pack(source + c * kSize);
#pragma unroll
      for (int j = 0; j < kSize; ++j) pack.values[j] = from_float<T>(exists ? to_float(pack.values[j]) * scale : 0.0f);
      store_pack(target + c * kSize, pack);
    }
  } else {
    for (std::int64_t c = threadIdx.x; c < width; c += kThreads)
      target[c] = from_float<T>(exists ? to_float(source[c]) * scale : 0.0f);
  }
}

// ---- Sort -----------------------------------------------------------------------------------------------------------

/// All invalid ids become `vocabulary`, which comes last in the order.
__device__ inline Entry entry_of(const std::int32_t* ids, std::int64_t i, std::int64_t vocabulary) {
  const std::int64_t id = ids[i];
  return (static_cast<Entry>(id >= 0 && id < vocabulary ? id : vocabulary) << 32) | static_cast<Entry>(i);
}

/// A block puts 32 entries at their places. Its warps divide the ids with which these are compared.
__global__ void __launch_bounds__(kThreads)
    sort_by_counting(const std::int32_t* ids, Entry* sorted, unsigned n, std::int64_t vocabulary) {
  constexpr unsigned kTile = 1024, kOfWarp = kTile / (kThreads / 32), kLast = 0x7fffffffu;
  __shared__ unsigned tile[kTile], counts[kThreads];
  const unsigned first = blockIdx.x * 32, i = first + threadIdx.x % 32, warp = threadIdx.x / 32;
  const Entry entry = i < n ? entry_of(ids, i, vocabulary) : 0;
  const auto id = static_cast<unsigned>(id_of(entry));
  unsigned count = 0;
  for (unsigned begin = 0; begin < n; begin += kTile) {
    __syncthreads();  // the previous tile may still be read
    for (unsigned j = threadIdx.x; j < kTile; j += kThreads)
      tile[j] = begin + j < n ? static_cast<unsigned>(id_of(entry_of(ids, begin + j, vocabulary))) : kLast;
    __syncthreads();
    const unsigned *const others = tile + warp * kOfWarp, at = begin + warp * kOfWarp;
    // An equal id comes before this one if its position does. The upper bit of a difference tells which one is less.
    if (at + kOfWarp <= first || at >= first + 32) {
      const unsigned bound = at < first ? id + 1 : id;
#pragma unroll 16
      for (unsigned j = 0; j < kOfWarp; ++j) count += (others[j] - bound) >> 31;
    } else {
      for (unsigned j = 0; j < kOfWarp; ++j) count += (others[j] - (at + j < i ? id + 1 : id)) >> 31;
    }
  }
  counts[threadIdx.x] = count;
  __syncthreads();
  if (warp > 0 || i >= n) return;
  for (unsigned other = 32; other < kThreads; other += 32) count += counts[other + threadIdx.x];
  sorted[count] = entry;
}

__global__ void make_entries(const std::int32_t* ids, Entry* entries, std::int64_t n, std::int64_t vocabulary) {
  for (std::int64_t i = first_item(); i < n; i += item_stride()) entries[i] = entry_of(ids, i, vocabulary);
}

__device__ inline unsigned digit_of(Entry entry, unsigned shift) {
  return static_cast<unsigned>(entry >> shift) & (kDigits - 1);
}

/// counts (tiles, digits): how often a digit occurs in a tile. Each thread counts one digit.
__global__ void __launch_bounds__(kThreads)
    count_digits(const Entry* entries, unsigned* counts, std::int64_t n, unsigned shift) {
  __shared__ unsigned char digits[kSortTile];
  const std::int64_t begin = std::int64_t{blockIdx.x} * kSortTile;
  const auto size = static_cast<unsigned>(n - begin < kSortTile ? n - begin : kSortTile);
  for (unsigned i = threadIdx.x; i < size; i += kThreads)
    digits[i] = static_cast<unsigned char>(digit_of(entries[begin + i], shift));
  __syncthreads();
  unsigned count = 0;
  for (unsigned i = 0; i < size; ++i) count += digits[i] == threadIdx.x;
  counts[blockIdx.x * kDigits + threadIdx.x] = count;
}

/// Each thread moves the entries with one digit, in order. They are preceded by all entries with lower digits, and by
/// those with the same digit in earlier tiles.
__global__ void __launch_bounds__(kThreads)
    move_entries(const Entry* entries, const unsigned* counts, Entry* sorted, std::int64_t n, unsigned shift) {
  __shared__ Entry tile[kSortTile];
  __shared__ unsigned totals[kDigits];
  const std::int64_t begin = std::int64_t{blockIdx.x} * kSortTile;
  const auto size = static_cast<unsigned>(n - begin < kSortTile ? n - begin : kSortTile);
  for (unsigned i = threadIdx.x; i < size; i += kThreads) tile[i] = entries[begin + i];
  unsigned total = 0, before = 0;
  for (unsigned t = 0; t < gridDim.x; ++t) {
    if (t == blockIdx.x) before = total;
    total += counts[t * kDigits + threadIdx.x];
  }
  totals[threadIdx.x] = total;
  __syncthreads();
  for (unsigned digit = 0; digit < threadIdx.x; ++digit) before += totals[digit];
  for (unsigned i = 0; i < size; ++i)
    if (digit_of(tile[i], shift) == threadIdx.x) sorted[before++] = tile[i];
}

// ---- Sums of runs ---------------------------------------------------------------------------------------------------

template <typename G>
__global__ void clear(G* values, PackWalk<G> walk) {
  walk.for_each([&](auto width, std::int64_t i) { store_values<width>(values + i, Pack<G>{}); });
}

/// G: the type of the gradient.
template <typename G>
struct Runs {
  const Entry* sorted = nullptr;
  std::int64_t n = 0, vocabulary = 0, width = 0;
  float* partial = nullptr;  // (tiles, 2, width): of a run that began before the tile, and of one that ends after it
  G* dweight = nullptr;
  bool accumulate = false;
  float scale = 1;

  __device__ bool continues(std::int64_t i) const { return i + 1 < n && id_of(sorted[i]) == id_of(sorted[i + 1]); }
  __device__ std::int64_t end_of_tile(std::int64_t tile) const {
    return (tile + 1) * kRunTile < n ? (tile + 1) * kRunTile : n;
  }
  __device__ void finish(std::int64_t id, std::int64_t column, float sum) const {
    G& target = dweight[id * width + column];
    sum *= scale;
    target = from_float<G>(accumulate ? to_float(target) + sum : sum);
  }
};

/// Each thread adds up one column of tile blockIdx.y. Runs that lie entirely in the tile are finished here.
template <typename T, typename G>
__global__ void __launch_bounds__(kThreads) sum_in_tiles(const T* dy, Runs<G> runs) {
  const std::int64_t column = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (column >= runs.width) return;
  const std::int64_t tile = blockIdx.y, begin = tile * kRunTile, end = runs.end_of_tile(tile);
  bool began_before = begin > 0 && runs.continues(begin - 1);
  float sum = 0;
  for (std::int64_t group = begin; group < end; group += kAhead) {
    float values[kAhead] = {};
#pragma unroll
    for (unsigned a = 0; a < kAhead; ++a)
      if (group + a < end) values[a] = to_float(dy[position_of(runs.sorted[group + a]) * runs.width + column]);
#pragma unroll
    for (unsigned a = 0; a < kAhead; ++a) {
      const std::int64_t i = group + a;
      if (i >= end || id_of(runs.sorted[i]) >= runs.vocabulary) return;
      sum += values[a];
      const bool continues = runs.continues(i);
      if (continues && i + 1 < end) continue;
      if (!began_before && !continues)
        runs.finish(id_of(runs.sorted[i]), column, sum);
      else
        runs.partial[(2 * tile + (began_before ? 0 : 1)) * runs.width + column] = sum;
      began_before = false;
      sum = 0;
    }
  }
}

/// Finishes the run that begins in tile blockIdx.y and ends in another tile, if there is one.
template <typename G>
__global__ void __launch_bounds__(kThreads) sum_over_tiles(Runs<G> runs) {
  const std::int64_t column = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  std::int64_t tile = blockIdx.y, last = runs.end_of_tile(tile) - 1;
  const std::int64_t id = id_of(runs.sorted[last]);
  const std::int64_t begin = tile * kRunTile;
  const bool began_before = begin > 0 && id_of(runs.sorted[begin - 1]) == id;
  if (column >= runs.width || id >= runs.vocabulary || began_before || !runs.continues(last)) return;
  float sum = runs.partial[(2 * tile + 1) * runs.width + column];
  do {
    ++tile;
    sum += runs.partial[2 * tile * runs.width + column];
    last = runs.end_of_tile(tile) - 1;
  } while (id_of(runs.sorted[last]) == id && runs.continues(last));
  runs.finish(id, column, sum);
}

// ---- The op ---------------------------------------------------------------------------------------------------------

class CudaEmbedding final : public CudaOp<EmbeddingDescription> {
 public:
  CudaEmbedding(const EmbeddingDescription& d, const CudaContext& context)
      : PlannedOp(d, context),
        n_sort_tiles_(static_cast<unsigned>((d.rows + kSortTile - 1) / kSortTile)),
        n_run_tiles_(static_cast<unsigned>((d.rows + kRunTile - 1) / kRunTile)),
        n_passes_((static_cast<unsigned>(std::bit_width(static_cast<std::uint64_t>(d.vocabulary))) + kBits - 1) /
                  kBits),
        layout_(row_major_layout(d.weight_layout, d.vocabulary * d.width, "an embedding")) {
    if (d.inference) return;
    const auto rows = static_cast<std::size_t>(d.rows);
    WorkspacePlan workspace;
    for (std::size_t& entries : at_.entries) entries = workspace.take(rows * sizeof(Entry));
    at_.counts = workspace.take(std::size_t{n_sort_tiles_} * kDigits * sizeof(unsigned));
    at_.partial = workspace.take(std::size_t{n_run_tiles_} * 2 * static_cast<std::size_t>(d.width) * sizeof(float));
    workspace_bytes_ = workspace.size_bytes();
  }

  OpMemoryRequirements memory_requirements() const override { return {.backward_workspace_bytes = workspace_bytes_}; }
  std::string describe() const override {
    return fmt::format("own kernels; the gradient is summed per id, sorted {}",
                       is_counted() ? "by counting" : fmt::format("in {} passes", n_passes_));
  }
  std::shared_ptr<const ParameterLayout> weight_layout() const override { return layout_; }

  void run_forward(const Forward& args, const OpMemory&, Stream& stream) override {
    if (FewRows::take(d_, args)) return;
    dispatch(d_.dtype, [&]<typename T>(T*) {
      const bool by_packs = d_.width % Pack<T>::kSize == 0 && are_aligned(args.weight, args.y);
      launch(by_packs ? take_rows<T, true> : take_rows<T, false>,
             {.blocks = static_cast<unsigned>(d_.rows),
              .threads = kThreads,
              .work = {.kind = "rows", .bytes = moved_bytes(2, d_.rows, d_.width, sizeof(T))}},
             stream, args.ids, static_cast<const T*>(args.weight), static_cast<T*>(args.y), d_.vocabulary, d_.width,
             d_.scale);
    });
  }

  void run_backward(const Backward& args, const OpMemory& memory, Stream& stream) override {
    require(!d_.inference, ErrorCode::internal, "an embedding was planned for inference, and backward was called");
    if (args.dweight_mode == GradientMode::skip) return;
    dispatch(d_.gradient_dtype, [&]<typename G>(G*) { sum_runs(static_cast<G*>(args.dweight), args, memory, stream); });
  }

 private:
  template <typename G>
  void sum_runs(G* dweight, const Backward& args, const OpMemory& memory, Stream& stream) const {
    const bool accumulate = args.dweight_mode == GradientMode::accumulate;
    if (!accumulate) {
      const PackWalk<G> walk(d_.vocabulary * d_.width, are_aligned(dweight));
      Grid grid = walk.grid(context_);
      grid.work = {.kind = "packs", .bytes = moved_bytes(1, d_.vocabulary, d_.width, sizeof(G))};
      launch(clear<G>, grid, stream, dweight, walk);
    }
    const Runs<G> runs{.sorted = sort(args.ids, memory, stream),
                       .n = d_.rows,
                       .vocabulary = d_.vocabulary,
                       .width = d_.width,
                       .partial = at<float>(memory.workspace, at_.partial),
                       .dweight = dweight,
                       .accumulate = accumulate,
                       .scale = d_.scale};
    Grid grid{.blocks = static_cast<unsigned>((d_.width + kThreads - 1) / kThreads),
              .threads = kThreads,
              .blocks_y = n_run_tiles_,
              .work = {.kind = "columns",
                       .bytes = moved_bytes(1, d_.rows, d_.width, size_bytes(d_.dtype) + sizeof(G)),
                       .steps = static_cast<double>(kRunTile / kAhead)}};
    dispatch(d_.dtype,
             [&]<typename T>(T*) { launch(sum_in_tiles<T, G>, grid, stream, static_cast<const T*>(args.dy), runs); });
    grid.work = {.kind = "small"};
    launch(sum_over_tiles<G>, grid, stream, runs);
  }

  bool is_counted() const { return d_.rows <= kMostCounted; }
  const Entry* sort(const std::int32_t* ids, const OpMemory& memory, Stream& stream) const {
    auto* entries = at<Entry>(memory.workspace, at_.entries[0]);
    auto* sorted = at<Entry>(memory.workspace, at_.entries[1]);
    auto* const counts = at<unsigned>(memory.workspace, at_.counts);
    if (is_counted()) {
      launch(sort_by_counting,
             {.blocks = static_cast<unsigned>((d_.rows + 31) / 32), .threads = kThreads, .work = {.kind = "small"}},
             stream, ids, sorted, static_cast<unsigned>(d_.rows), d_.vocabulary);
      return sorted;
    }
    Grid items = grid_of_items(d_.rows, context_);
    items.work = {.kind = "small"};
    launch(make_entries, items, stream, ids, entries, d_.rows, d_.vocabulary);
    for (unsigned pass = 0; pass < n_passes_; ++pass) {
      const unsigned shift = 32 + pass * kBits;
      const Grid grid{.blocks = n_sort_tiles_, .threads = kThreads, .work = {.kind = "small"}};
      launch(count_digits, grid, stream, entries, counts, d_.rows, shift);
      launch(move_entries, grid, stream, entries, counts, sorted, d_.rows, shift);
      std::swap(entries, sorted);
    }
    return entries;
  }

  unsigned n_sort_tiles_, n_run_tiles_, n_passes_;
  std::shared_ptr<const ParameterLayout> layout_;
  struct Offsets {
    std::size_t entries[2] = {}, counts = 0, partial = 0;
  } at_;
  std::size_t workspace_bytes_ = 0;
};

}  // namespace

std::unique_ptr<Embedding> make_embedding(const EmbeddingDescription& d, const CudaContext& context) {
  constexpr std::int64_t kLimit = std::int64_t{1} << 31;
  require(d.rows > 0 && d.vocabulary > 0 && d.width > 0 && d.vocabulary < kLimit, ErrorCode::op_description,
          "an embedding of {} ids out of {} in rows of {} elements: each must be positive, and the second below 2^31",
          d.rows, d.vocabulary, d.width);
  require(d.rows <= std::int64_t{65535} * kRunTile, ErrorCode::not_supported,
          "an embedding of {} ids in a micro-batch; on a GPU at most {} are possible: use smaller micro-batches",
          d.rows, std::int64_t{65535} * kRunTile);
  dispatch(d.dtype, [](auto*) {});
  return std::make_unique<CudaEmbedding>(d, context);
}

}  // namespace lockstep::cuda
