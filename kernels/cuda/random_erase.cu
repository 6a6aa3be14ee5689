// Random erasing in one kernel (lockstep/ops/random_erase.h). Each block repeats the draws for the rectangle of its
// image.
//
// Bytes moved per value: one read and one written, which is the floor of an op with an output of its own.
#include <memory>

#include "kernels/cuda/base/image_grid.h"
#include "lockstep/ops/random_erase.h"

namespace lockstep::cuda {
namespace {

struct Images : ImageShape {
  double probability = 0;
  std::uint32_t seed = 0;
};

/// Block (x, y) computes packs x, x + blocks, ... of images y, y + blocks_y, ... A pack is kWidth values of an image.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kImageThreads) erase(Images images, RandomErase::Forward args) {
  const int n_elements = images.image_elements();
  __shared__ ErasedRectangle shared_rectangle;
  for (int n = static_cast<int>(blockIdx.y); n < images.n; n += static_cast<int>(gridDim.y)) {
    __syncthreads();  // the previous image is finished
    if (threadIdx.x == 0)
      shared_rectangle =
          draw_erased(images.probability, images.height, images.width,
                      Philox(images.seed, RandomPurpose::erase, args.sample_ids[n], args.scalars->epoch));
    __syncthreads();
    const ErasedRectangle erased = shared_rectangle;
    const T* const x = static_cast<const T*>(args.x) + std::size_t{static_cast<unsigned>(n)} * n_elements;
    T* const y = static_cast<T*>(args.y) + std::size_t{static_cast<unsigned>(n)} * n_elements;
    const int stride = static_cast<int>(gridDim.x * blockDim.x) * kWidth;
    for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) * kWidth; i < n_elements; i += stride) {
      Pack<T> values = load_values<kWidth>(x + i);
      if (erased.height > 0) {
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {
          const int pixel = (i + j) / images.channels;
          const int row = pixel / images.width - erased.top, column = pixel % images.width - erased.left;
          if (row >= 0 && row < erased.height && column >= 0 && column < erased.width)
            values.values[j] = from_float<T>(0.0f);
        }
      }
      store_values<kWidth>(y + i, values);
    }
  }
}

class CudaRandomErase final : public CudaOp<RandomEraseDescription> {
 public:
  CudaRandomErase(const RandomEraseDescription& d, const CudaContext& context)
      : PlannedOp(d, context), images_{image_shape(d.x, "random erasing"), d.probability, d.seed} {}

  std::string describe() const override { return "own kernel"; }

  void run_forward(const Forward& args, const OpMemory&, Stream& stream) override {
    dispatch(d_.dtype, [&]<typename T>(T*) {
      constexpr int kPack = Pack<T>::kSize;
      const bool by_packs = goes_by_packs<T>(images_, args.x, args.y);
      launch(by_packs ? erase<T, kPack> : erase<T, 1>, image_grid(images_, by_packs ? kPack : 1, context_), stream,
             images_, args);
    });
  }

 private:
  Images images_;
};

}  // namespace

std::unique_ptr<RandomErase> make_random_erase(const RandomEraseDescription& d, const CudaContext& context) {
  return std::make_unique<CudaRandomErase>(d, context);
}

}  // namespace lockstep::cuda
