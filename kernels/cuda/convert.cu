#include "kernels/cuda/base/launch.h"
#include "kernels/cuda/base/numbers.h"
#include "kernels/cuda/convert.h"
#include "lockstep/error.h"

namespace lockstep::cuda {
namespace {

template <typename From, typename To>
__global__ void convert(const From* source, To* target, std::size_t n_elements) {
  const std::size_t stride = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n_elements; i += stride)
    target[i] = from_float<To>(to_float(source[i]));
}

template <typename From, typename To>
class CudaConvert final : public Convert {
 public:
  explicit CudaConvert(const CudaContext& context) : context_(context) {}

  OpNeeds needs() const override { return {}; }
  std::string describe() const override { return "own kernel"; }

  void apply(const Apply& args, const OpMemory&, Stream& stream) override {
    const unsigned limit = static_cast<unsigned>(context_.multiprocessors) * 8;
    launch(convert<From, To>, {.blocks = blocks_for(args.n_elements, 256, limit)}, stream,
           static_cast<const From*>(args.source), static_cast<To*>(args.target), args.n_elements);
  }

 private:
  CudaContext context_;
};

}  // namespace

std::unique_ptr<Convert> make_convert(const ConvertDescription& d, const CudaContext& context) {
  if (d.from == DType::fp32 && d.to == DType::bf16) return std::make_unique<CudaConvert<float, Bfloat16>>(context);
  if (d.from == DType::bf16 && d.to == DType::fp32) return std::make_unique<CudaConvert<Bfloat16, float>>(context);
  if (d.from == DType::fp32 && d.to == DType::fp16) return std::make_unique<CudaConvert<float, Half>>(context);
  if (d.from == DType::fp16 && d.to == DType::fp32) return std::make_unique<CudaConvert<Half, float>>(context);
  fail(ErrorCode::not_supported, "{} to {}: fp32 and bf16 or fp16 are converted into each other", name(d.from),
       name(d.to));
}

}  // namespace lockstep::cuda
