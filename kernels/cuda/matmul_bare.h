// One matrix product of cuBLASLt. A linear layer (matmul.cpp) consists of them.
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
  bool a_is_transposed = false;  // a is stored as (inner, rows), otherwise as (rows, inner)
  bool b_is_transposed = false;  // b is stored as (columns, inner), otherwise as (inner, columns)
  DType dtype = DType::fp32;     // of a, b and bias
  DType d_dtype = DType::fp32;   // of d: `dtype`, or fp32 without bias
  std::int64_t d_stride = 0;     // elements from one row of d to the next; 0: columns
  bool tf32 = false;
  bool bias = false;
  ActivationFunction activation = ActivationFunction::none;  // f; with an activation nothing is accumulated
  bool keeps_z = false;                                      // gelu: the argument of f is stored too
};
/// "256x1000x2048, a^T, fp16 to fp32, bias"
std::string text(const ProductDescription& product);

class PlannedProduct {
 public:
  virtual ~PlannedProduct() = default;
  /// The same for every algorithm, so that a step that is planned without the device needs the same memory.
  virtual std::size_t workspace_bytes() const = 0;
  virtual std::string algorithm() const = 0;
  /// Whether run() applies the activation and stores z; otherwise d is z, and the caller applies it.
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

/// The algorithm is the one that context.algorithms has stored or finds to be the fastest; null: cuBLASLt's first.
std::unique_ptr<PlannedProduct> plan_product(const ProductDescription& product, const CudaContext& context);

/// The same for a part of an op, which has the types of the op's description.
template <typename Description>
std::unique_ptr<PlannedProduct> plan_product(const Description& d, ProductDescription product,
                                             const CudaContext& context) {
  product.dtype = d.dtype;
  product.tf32 = d.tf32;
  return plan_product(product, context);
}

}  // namespace lockstep::cuda
