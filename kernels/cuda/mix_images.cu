// Mixup and cutmix of a batch in one kernel (lockstep/ops/mix_images.h). Each block repeats the draws of the batch.
//
// Bytes moved per value: mixup reads two values and writes one; cutmix reads one and writes one, which is the floor.
#include <memory>

#include "kernels/cuda/base/image_grid.h"
#include "lockstep/ops/mix_images.h"

namespace lockstep::cuda {
namespace {

struct Images : ImageShape {
  std::uint32_t seed = 0;
};

/// Block (x, y) computes packs x, x + blocks, ... of images y, y + blocks_y, ... A pack is kWidth values of an image.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kImageThreads) mix_images(Images images, MixImages::Forward args) {
  __shared__ ImageMix shared_mix;
  if (threadIdx.x == 0) shared_mix = draw_mix(images.seed, images.height, images.width, args);
  __syncthreads();
  const ImageMix mix = shared_mix;
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) *args.weight = mix.weight;
  const int n_elements = images.image_elements();
  for (int n = static_cast<int>(blockIdx.y); n < images.n; n += static_cast<int>(gridDim.y)) {
    const int partner = n > 0 ? n - 1 : images.n - 1;
    if (blockIdx.x == 0 && threadIdx.x == 0)
      args.partner_labels[n] = args.labels[partner] < 0 ? args.labels[n] : args.labels[partner];
    const T* const own = static_cast<const T*>(args.x) + std::size_t{static_cast<unsigned>(n)} * n_elements;
    const T* const other = static_cast<const T*>(args.x) + std::size_t{static_cast<unsigned>(partner)} * n_elements;
    T* const y = static_cast<T*>(args.y) + std::size_t{static_cast<unsigned>(n)} * n_elements;
    const int stride = static_cast<int>(gridDim.x * blockDim.x) * kWidth;
    for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) * kWidth; i < n_elements; i += stride) {
      Pack<T> values = load_values<kWidth>(own + i);
      if (!mix.cuts) {
        const Pack<T> others = load_values<kWidth>(other + i);
#pragma unroll
        for (int j = 0; j < kWidth; ++j)
          values.values[j] =
              from_float<T>(mix.weight * to_float(values.values[j]) + (1.0f - mix.weight) * to_float(others.values[j]));
      } else {
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {
          const int pixel = (i + j) / images.channels, row = pixel / images.width, column = pixel % images.width;
          const bool inside = row >= mix.top && row < mix.bottom && column >= mix.left && column < mix.right;
          if (inside) values.values[j] = other[i + j];
        }
      }
      store_values<kWidth>(y + i, values);
    }
  }
}

class CudaMixImages final : public CudaOp<MixImagesDescription> {
 public:
  CudaMixImages(const MixImagesDescription& d, const CudaContext& context)
      : PlannedOp(d, context), images_{image_shape(d.x, "mixing images"), d.seed} {}

  std::string describe() const override { return "own kernel: mixes each image with the one before it"; }

  void run_forward(const Forward& args, const OpMemory&, Stream& stream) override {
    dispatch(d_.dtype, [&]<typename T>(T*) {
      constexpr int kPack = Pack<T>::kSize;
      const bool by_packs = goes_by_packs<T>(images_, args.x, args.y);
      launch(by_packs ? mix_images<T, kPack> : mix_images<T, 1>, image_grid(images_, by_packs ? kPack : 1, context_),
             stream, images_, args);
    });
  }

 private:
  Images images_;
};

}  // namespace

std::unique_ptr<MixImages> make_mix_images(const MixImagesDescription& d, const CudaContext& context) {
  return std::make_unique<CudaMixImages>(d, context);
}

}  // namespace lockstep::cuda
