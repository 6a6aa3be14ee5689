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
#include "lockstep/ops/matmul.h"

namespace lockstep::cuda {

/// d (rows, columns) = f(a b [+ bias (columns), to each row]) [+ d], all row-major; sums in fp32.
struct ProductDescription {
  std::int64_t rows = 0, columns = 0, inner = 0;
  bool a_is_transposed = false;  // a is stored as (inner, rows), otherwise as (rows, inner)
  bool b_is_transposed = false;  // b is stored as (columns, inner), otherwise as (inner, columns)
  DType dtype = DType::fp32;     // of a, b and bias; e4m3: the bias has the type of d, and only b is transposed
  bool a_is_e5m2 = false;        // if `dtype` is e4m3
  DType d_dtype = DType::fp32;   // of d: `dtype`, or fp32 without bias; bf16 or fp32 if `dtype` is e4m3
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
    // In fp8, on the device: a and b are multiplied by these numbers.
    const float *a_scale = nullptr, *b_scale = nullptr;
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

/// The op of a description with fp8 (matmul_fp8.cu).
std::unique_ptr<Matmul> make_matmul_in_fp8(const MatmulDescription& description, const CudaContext& context);

}  // namespace lockstep::cuda
