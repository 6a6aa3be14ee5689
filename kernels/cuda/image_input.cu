// uint8 images to the network's input: crop, flip and normalisation in one kernel (lockstep/ops/image_input.h). The
// draws of an image are Philox's, the same numbers as on every backend; each block computes those of its image again.
// A value is scale * byte + shift with scale = 1 / (255 stddev), shift = -mean / stddev from fp64.
//
// Bytes moved per value: 1 read and size_bytes(dtype) written, which is the floor.
#include <algorithm>
#include <memory>

#include "kernels/cuda/base/context.h"
#include "kernels/cuda/base/launch.h"
#include "kernels/cuda/base/numbers.h"
#include "lockstep/ops/image_input.h"
#include "lockstep/philox.h"

namespace lockstep::cuda {
namespace {

constexpr unsigned kThreads = 256;
constexpr unsigned kMaxBlocksY = 65535;

struct Images {
  static constexpr int kMaxChannels = 64;
  int n = 0, height = 0, width = 0, channels = 0;
  int crop_padding = 0;
  bool flip = false;
  std::uint32_t seed = 0;
  float scale[kMaxChannels] = {};
  float shift[kMaxChannels] = {};
};

/// The position of an output image in its padded source.
struct Placement {
  int row = 0, column = 0;  // of the output's corner in the source; may be negative
  bool flipped = false;     // left and right, after the crop
};

__device__ inline Placement draw(const Images& images, std::uint32_t sample, std::uint32_t epoch) {
  Placement placement;
  if (images.crop_padding > 0) {
    const auto block = Philox(images.seed, RandomPurpose::crop, sample, epoch).block(0);
    const std::uint32_t n_places = 2 * static_cast<std::uint32_t>(images.crop_padding) + 1;
    placement.row = static_cast<int>(Philox::below(block[0], n_places)) - images.crop_padding;
    placement.column = static_cast<int>(Philox::below(block[1], n_places)) - images.crop_padding;
  }
  if (images.flip) {
    const auto block = Philox(images.seed, RandomPurpose::flip, sample, epoch).block(0);
    placement.flipped = (block[0] & 1u) != 0;
  }
  return placement;
}

/// Block (x, y): packs x, x + blocks, ... of images y, y + blocks_y, ... A pack is kWidth values of an image, which may
/// continue in the next row.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads) normalize(const __grid_constant__ Images images, ImageInput::Forward args) {
  const int image_elements = images.height * images.width * images.channels;
  __shared__ Placement shared_placement;
  for (int n = static_cast<int>(blockIdx.y); n < images.n; n += static_cast<int>(gridDim.y)) {
    __syncthreads();  // of the image before
    if (threadIdx.x == 0) shared_placement = draw(images, args.sample_ids[n], args.scalars->epoch);
    __syncthreads();
    const Placement placement = shared_placement;
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
      if constexpr (kWidth == 1)
        target[i] = values.values[0];
      else
        store_pack(target + i, values);
    }
  }
}

class CudaImageInput final : public ImageInput {
 public:
  CudaImageInput(const ImageInputDescription& d, const CudaContext& context)
      : description_(d), limit_(static_cast<unsigned>(context.multiprocessors) * 16) {
    images_ = {.n = static_cast<int>(d.x[0]),
               .height = static_cast<int>(d.x[1]),
               .width = static_cast<int>(d.x[2]),
               .channels = static_cast<int>(d.x[3]),
               .crop_padding = d.crop_padding,
               .flip = d.flip,
               .seed = d.seed};
    for (std::size_t c = 0; c < d.mean.size(); ++c) {
      images_.scale[c] = static_cast<float>(1.0 / (255.0 * double{d.stddev[c]}));
      images_.shift[c] = static_cast<float>(-double{d.mean[c]} / double{d.stddev[c]});
    }
  }

  OpNeeds needs() const override { return {}; }
  std::string describe() const override {
    std::string text = "own kernel: normalisation";
    if (description_.crop_padding > 0) text += ", crop";
    if (description_.flip) text += ", flip";
    return text;
  }

  void run_forward(const Forward& args, const OpMemory&, Stream& stream) override {
    dispatch(description_.dtype, [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      const std::size_t values = image_elements(description_.x);
      const bool by_packs = values % Pack<T>::kSize == 0 && are_aligned(args.y);
      const std::size_t packs = by_packs ? values / Pack<T>::kSize : values;
      const unsigned n = std::min(static_cast<unsigned>(images_.n), kMaxBlocksY);
      const Grid grid{
          .blocks = blocks_for(packs, kThreads, std::max(limit_ / n, 1u)), .threads = kThreads, .blocks_y = n};
      launch(by_packs ? normalize<T, Pack<T>::kSize> : normalize<T, 1>, grid, stream, images_, args);
    });
  }

  static std::size_t image_elements(const Shape& x) { return static_cast<std::size_t>(x[1] * x[2] * x[3]); }

 private:
  ImageInputDescription description_;
  Images images_;
  unsigned limit_;
};

}  // namespace

std::unique_ptr<ImageInput> make_image_input(const ImageInputDescription& d, const CudaContext& context) {
  require(d.x.rank() == 4 && d.x.n_elements() > 0, ErrorCode::internal, "image input needs images (N, H, W, C), not {}",
          d.x.text());
  const std::size_t channels = static_cast<std::size_t>(d.x[3]);
  require(channels <= Images::kMaxChannels, ErrorCode::not_supported,
          "image input on the device supports at most {} channels, not {}", Images::kMaxChannels, channels);
  require(CudaImageInput::image_elements(d.x) < (std::size_t{1} << 30), ErrorCode::not_supported,
          "image input on the device supports images of less than 2^30 values, not {}", d.x.text());
  require(d.mean.size() == channels && d.stddev.size() == channels, ErrorCode::internal,
          "image input needs {} means and standard deviations, one per channel, but has {} and {}", channels,
          d.mean.size(), d.stddev.size());
  require(std::all_of(d.stddev.begin(), d.stddev.end(), [](float s) { return s > 0; }), ErrorCode::not_supported,
          "image input divides by the standard deviation of each channel, which must be greater than 0");
  require(d.crop_padding >= 0, ErrorCode::internal,
          "the crop padding of the image input must not be negative, but is {}", d.crop_padding);
  return std::make_unique<CudaImageInput>(d, context);
}

}  // namespace lockstep::cuda
