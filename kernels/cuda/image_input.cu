// Converts uint8 images to the network's input: crop, flip and normalisation in one kernel
// (lockstep/ops/image_input.h). The draws of an image come from Philox, with the same numbers on every backend; each
// block recomputes those of its image.
// A value is scale * byte + shift with scale = 1 / (255 stddev), shift = -mean / stddev from fp64.
//
// Bytes moved per value: 1 read and size_bytes(dtype) written, which is the minimum. Each pixel of a region is read
// from memory about once, and from the caches once per output that it contributes to. A value takes about 2 r (2 r + 1)
// multiplications of bytes and weights with r = max(1, scale), so that the products of a random crop from 256 x 341
// pixels to 224 x 224 x 3, 0.9 million, take far less time than its 0.13 MB read and, in 16 bits, 0.3 MB written.
#include <algorithm>
#include <memory>

#include "kernels/cuda/base/image_grid.h"
#include "lockstep/ops/image_input.h"
#include "lockstep/resize_rows.h"

namespace lockstep::cuda {
namespace {

// For regions: the outputs of a thread block. Their weights are in shared memory, so that each is computed only once
// for 64 or 32 outputs.
constexpr int kTileRows = 64, kTileColumns = 32;
// The shared memory that a kernel may use without opting in, minus what it declares statically.
constexpr std::size_t kMaxSharedBytes = (48u << 10) - 128;

struct Images : ImageShape {
  static constexpr int kMaxChannels = 64;
  int crop_padding = 0;
  bool flip = false;
  std::uint32_t seed = 0;
  float scale[kMaxChannels] = {};
  float shift[kMaxChannels] = {};
};

__device__ inline ImagePlacement draw(const Images& images, std::uint32_t sample, std::uint32_t epoch) {
  return draw_placement(images.crop_padding, images.flip, images.seed, sample, epoch);
}

/// Block (x, y) computes packs x, x + blocks, ... of images y, y + blocks_y, ... A pack is kWidth values of an image,
/// which may continue in the next row.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kImageThreads)
    normalize(const __grid_constant__ Images images, ImageInput::Forward args) {
  const int image_elements = images.image_elements();
  __shared__ ImagePlacement shared_placement;
  for (int n = static_cast<int>(blockIdx.y); n < images.n; n += static_cast<int>(gridDim.y)) {
    __syncthreads();  // the previous image is finished
    if (threadIdx.x == 0) shared_placement = draw(images, args.sample_ids[n], args.scalars->epoch);
    __syncthreads();
    const ImagePlacement placement = shared_placement;
    const std::uint8_t* source = args.images + std::size_t{static_cast<unsigned>(n)} * image_elements;
    T* target = static_cast<T*>(args.y) + std::size_t{static_cast<unsigned>(n)} * image_elements;

    const int stride = static_cast<int>(gridDim.x * blockDim.x) * kWidth;
    for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) * kWidth; i < image_elements; i += stride) {
      int channel = i % images.channels, column = i / images.channels % images.width,
          row = i / images.channels / images.width;
      Pack<T> values;
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        const int from_row = row + placement.row;
        const int from_column = (placement.flipped ? images.width - 1 - column : column) + placement.column;
        const bool inside = from_row >= 0 && from_row < images.height && from_column >= 0 && from_column < images.width;
        const int from = (from_row * images.width + from_column) * images.channels + channel;
        const float byte = inside ? static_cast<float>(source[from]) : 0.0f;
        values.values[j] = from_float<T>(byte * images.scale[channel] + images.shift[channel]);
        if (++channel < images.channels) continue;
        channel = 0;
        if (++column < images.width) continue;
        column = 0;
        ++row;
      }
      store_values<kWidth>(target + i, values);
    }
  }
}

/// The pixels from which outputs along one axis are computed, and their weights, in shared memory.
struct Taps {
  int* begin;             // (outputs), relative to the first stored pixel
  int* count;             // (outputs); 0: the output is outside of the image
  std::int32_t* weights;  // (outputs, max_taps)
  int max_taps;
};

__device__ inline void compute_taps(const Taps& taps, int at, const ResizedAxis& axis, int output, int n_outputs) {
  taps.count[at] = 0;
  if (axis.n == 0 || output < 0 || output >= n_outputs) return;
  const ResizedOutput resized(axis, output);
  const ResizeTaps range = resized.taps();
  const int n = range.end - range.begin < taps.max_taps ? range.end - range.begin : taps.max_taps;
  taps.begin[at] = range.begin - axis.first;
  taps.count[at] = n;
  for (int k = 0; k < n; ++k)
    taps.weights[at * taps.max_taps + k] = resized.weight(range.begin + k, kResizeFractionBits);
}

__device__ inline int rounded_byte(int sum) {
  const int value = sum >> kResizeFractionBits;
  return value < 0 ? 0 : value > 255 ? 255 : value;
}

/// Block (x, y) computes tiles x, x + blocks, ... of images y, y + blocks_y, ... A thread computes the channels of one
/// output pixel: for each row of neighbours the weighted sum along the row, which is rounded, and then the weighted sum
/// of these.
template <typename T, int kChannels>
__global__ void __launch_bounds__(kImageThreads)
    resize(const __grid_constant__ Images images, const __grid_constant__ RegionLimits limits, int max_row_taps,
           int max_column_taps, ImageInput::Forward args) {
  int* const shared = shared_memory<int>();
  const Taps rows{shared, shared + kTileRows, shared + 2 * (kTileRows + kTileColumns), max_row_taps};
  const Taps columns{shared + 2 * kTileRows, shared + 2 * kTileRows + kTileColumns,
                     rows.weights + kTileRows * max_row_taps, max_column_taps};
  const int tiles_across = (images.width + kTileColumns - 1) / kTileColumns;
  const int n_tiles = tiles_across * ((images.height + kTileRows - 1) / kTileRows);
  constexpr int kHalf = 1 << (kResizeFractionBits - 1);
  __shared__ ImagePlacement shared_placement;
  for (int n = static_cast<int>(blockIdx.y); n < images.n; n += static_cast<int>(gridDim.y)) {
    const ImageRegion region = args.regions[n];
    const std::uint8_t* source = args.images + std::int64_t{args.places[n]} * limits.place_bytes;
    T* const target = static_cast<T*>(args.y) + std::int64_t{n} * images.height * images.width * kChannels;
    __syncthreads();  // the previous image is finished
    if (threadIdx.x == 0) shared_placement = draw(images, args.sample_ids[n], args.scalars->epoch);
    __syncthreads();
    const ImagePlacement placement = shared_placement;
    for (int tile = static_cast<int>(blockIdx.x); tile < n_tiles; tile += static_cast<int>(gridDim.x)) {
      const int first_row = tile / tiles_across * kTileRows, first_column = tile % tiles_across * kTileColumns;
      __syncthreads();  // the previous tile is finished
      for (int i = static_cast<int>(threadIdx.x); i < kTileRows + kTileColumns; i += static_cast<int>(kImageThreads)) {
        if (i < kTileRows) {
          const int row = first_row + i;
          compute_taps(rows, i, region.rows, row < images.height ? row + placement.row : -1, images.height);
        } else {
          const int column = first_column + i - kTileRows;
          const int mirrored = placement.flipped ? images.width - 1 - column : column;
          compute_taps(columns, i - kTileRows, region.columns, column < images.width ? mirrored + placement.column : -1,
                       images.width);
        }
      }
      __syncthreads();
      const int at_column = static_cast<int>(threadIdx.x) % kTileColumns, column = first_column + at_column;
      if (column >= images.width) continue;
      const int n_columns = columns.count[at_column];
      const std::int32_t* const column_weights = columns.weights + at_column * max_column_taps;
      for (int at_row = static_cast<int>(threadIdx.x) / kTileColumns; at_row < kTileRows;
           at_row += static_cast<int>(kImageThreads) / kTileColumns) {
        const int row = first_row + at_row;
        if (row >= images.height) break;
        const int n_rows = n_columns > 0 ? rows.count[at_row] : 0;
        int sums[kChannels];
#pragma unroll
        for (int c = 0; c < kChannels; ++c) sums[c] = kHalf;
        for (int r = 0; r < n_rows; ++r) {
          const std::uint8_t* pixel =
              source + (std::int64_t{rows.begin[at_row] + r} * region.columns.n + columns.begin[at_column]) * kChannels;
          int along[kChannels];
#pragma unroll
          for (int c = 0; c < kChannels; ++c) along[c] = kHalf;
          for (int k = 0; k < n_columns; ++k, pixel += kChannels)
#pragma unroll
            for (int c = 0; c < kChannels; ++c) along[c] += column_weights[k] * static_cast<int>(pixel[c]);
#pragma unroll
          for (int c = 0; c < kChannels; ++c)
            sums[c] += rows.weights[at_row * max_row_taps + r] * rounded_byte(along[c]);
        }
        T* const out = target + (std::int64_t{row} * images.width + column) * kChannels;
#pragma unroll
        for (int c = 0; c < kChannels; ++c)
          out[c] = from_float<T>(static_cast<float>(rounded_byte(sums[c])) * images.scale[c] + images.shift[c]);
      }
    }
  }
}

/// The shared memory of resize() in bytes.
std::size_t resize_shared_bytes(int max_row_taps, int max_column_taps) {
  return sizeof(int) * (static_cast<std::size_t>(kTileRows) * static_cast<std::size_t>(2 + max_row_taps) +
                        static_cast<std::size_t>(kTileColumns) * static_cast<std::size_t>(2 + max_column_taps));
}

class CudaImageInput final : public CudaOp<ImageInputDescription> {
 public:
  CudaImageInput(const ImageInputDescription& d, const CudaContext& context)
      : PlannedOp(d, context), images_{image_shape(d.x, "image input"), d.crop_padding, d.flip, d.seed} {
    for (std::size_t c = 0; c < d.mean.size(); ++c) {
      images_.scale[c] = static_cast<float>(1.0 / (255.0 * double{d.stddev[c]}));
      images_.shift[c] = static_cast<float>(-double{d.mean[c]} / double{d.stddev[c]});
    }
    max_row_taps_ = max_resize_taps(d.regions.max_height, images_.height);
    max_column_taps_ = max_resize_taps(d.regions.max_width, images_.width);
  }

  std::string describe() const override {
    std::string text = "own kernel: normalisation";
    if (d_.regions.exist()) text += ", antialiased resizing of regions";
    if (d_.crop_padding > 0) text += ", crop";
    if (d_.flip) text += ", flip";
    return text;
  }

  void run_forward(const Forward& args, const OpMemory&, Stream& stream) override {
    dispatch(d_.dtype, [&]<typename T>(T*) {
      if (d_.regions.exist()) {
        const int tiles =
            (images_.height + kTileRows - 1) / kTileRows * ((images_.width + kTileColumns - 1) / kTileColumns);
        Grid grid = image_grid(images_, 1, context_);
        grid.blocks = std::min(grid.blocks, static_cast<unsigned>(tiles));
        grid.shared_bytes = static_cast<unsigned>(resize_shared_bytes(max_row_taps_, max_column_taps_));
        launch(images_.channels == 3 ? resize<T, 3> : resize<T, 1>, grid, stream, images_, d_.regions, max_row_taps_,
               max_column_taps_, args);
        return;
      }
      constexpr int kPack = Pack<T>::kSize;
      const bool by_packs = goes_by_packs<T>(images_, args.y);
      Grid grid = image_grid(images_, by_packs ? kPack : 1, context_);
      grid.work = {.kind = by_packs ? "packs" : "elements",
                   .bytes = moved_bytes(1, images_.n, images_.image_elements(), 1 + sizeof(T))};
      launch(by_packs ? normalize<T, kPack> : normalize<T, 1>, grid, stream, images_, args);
    });
  }

 private:
  Images images_;
  int max_row_taps_ = 0, max_column_taps_ = 0;
};

}  // namespace

std::unique_ptr<ImageInput> make_image_input(const ImageInputDescription& d, const CudaContext& context) {
  require(d.x[3] <= Images::kMaxChannels, ErrorCode::not_supported,
          "image input on the device supports at most {} channels, not {}", Images::kMaxChannels, d.x[3]);
  require(!d.regions.exist() ||
              resize_shared_bytes(max_resize_taps(d.regions.max_height, static_cast<int>(d.x[1])),
                                  max_resize_taps(d.regions.max_width, static_cast<int>(d.x[2]))) <= kMaxSharedBytes,
          ErrorCode::not_supported,
          "image input on the device does not shrink {} x {} pixels (height, width) to {} x {}: import the images with "
          "a smaller --short-side",
          d.regions.max_height, d.regions.max_width, d.x[1], d.x[2]);
  return std::make_unique<CudaImageInput>(d, context);
}

}  // namespace lockstep::cuda
