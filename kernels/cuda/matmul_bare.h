// One matrix product of cuBLASLt. The unit that matmul.cpp makes of them is a linear layer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "kernels/cuda/base/context.h"
#include "lockstep/algorithms.h"
#include "lockstep/dtype.h"
#include "lockstep/event.h"
#include "lockstep/ops/activation_function.h"

namespace lockstep::cuda {

/// d (rows, columns) = f(a b [+ bias (columns), to each row]) [+ d], all row-major; sums in fp32.
struct ProductDescription {
  std::int64_t rows = 0, columns = 0, inner = 0;
  bool a_is_transposed = false;  // a lies as (inner, rows), else (rows, inner)
  bool b_is_transposed = false;  // b lies as (columns, inner), else (inner, columns)
  DType dtype = DType::fp32;     // of a, b and bias
  DType d_dtype = DType::fp32;   // of d: `dtype`, or fp32 without bias
  bool tf32 = false;
  bool bias = false;
  ActivationFunction activation = ActivationFunction::none;  // f; with one nothing is accumulated
  bool keeps_z = false;                                      // gelu: what f is given is stored too
};
/// "256x1000x2048, a^T, fp16 to fp32, bias"
std::string text(const ProductDescription& product);

class PlannedProduct {
 public:
  virtual ~PlannedProduct() = default;
  /// The same whatever algorithm is chosen, so that a step planned without the device is as large.
  virtual std::size_t workspace_bytes() const = 0;
  virtual std::string algorithm() const = 0;
  /// Whether run() applies the activation, and stores z; else d is z, and the caller does.
  virtual bool activates() const = 0;

  struct Arguments {
    const void* a = nullptr;
    const void* b = nullptr;
    const void* bias = nullptr;
    void* d = nullptr;
    void* z = nullptr;  // (rows, columns), of d's type
    bool accumulate = false;
  };
  virtual void run(const Arguments& args, void* workspace, Stream& stream) = 0;
};

/// Which of cuBLASLt's algorithms: as `algorithms` remembers or finds to be the fastest; null: its own first.
std::unique_ptr<PlannedProduct> plan_product(const ProductDescription& product, const CudaContext& context,
                                             Algorithms* algorithms);

}  // namespace lockstep::cuda
