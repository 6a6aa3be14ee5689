// Matmul with bias and activation: y (M, out) = f(z), z = x (M, in) * weight^T (in, out) + bias (out)
//     dz = f'(z) * dy;  dx = dz * weight,  dweight = dz^T * x,  dbias = sum over rows of dz
// The weight is (out, in) in canonical form, and has the layout weight_layout() in memory. Weight and bias have the
// type of x. Their gradients are fp32, or have that type too, into which their sums in fp32 are rounded. With
// `fp32_output`, y is fp32 whatever the type of x is: a sampler needs the logits of a language model without rounding.
//
// With `fp8`, for training in bf16, the operands of the three products are rounded to fp8 with a scale for each tensor
// (lockstep/fp8.h): x and weight to E4M3, and dy to E5M2. Sums are fp32, and y, dx and dbias are what they are in bf16.
// The scales are computed in each call from the tensors at hand, so that there is nothing to keep from step to step:
// those of x and dy from the rows of this call, which are a micro-batch of one rank, and that of the weight from the
// whole weight, with the same result on all ranks. So what a micro-batch adds to a gradient depends on its samples and
// the weights alone, and the same micro-batches give the same bits on any number of ranks.
#pragma once

#include <memory>

#include "lockstep/dtype.h"
#include "lockstep/error.h"
#include "lockstep/op.h"
#include "lockstep/ops/activation_function.h"

namespace lockstep {

struct MatmulDescription {
  using Op = class Matmul;
  static constexpr std::string_view kName = "matmul";

  std::int64_t rows = 0;  // M
  std::int64_t in_features = 0;
  std::int64_t out_features = 0;
  DType dtype = DType::fp32;
  DType gradient_dtype = DType::fp32;  // of dweight and dbias: fp32 or `dtype`
  bool tf32 = false;                   // fp32 may be rounded to tf32 inside the multiply
  bool fp8 = false;  // bf16 is rounded to fp8 inside the multiply; without activation, sizes are multiples of 16
  bool bias = true;
  ActivationFunction activation = ActivationFunction::none;
  bool input_gradient = true;
  bool inference = false;
  bool fp32_output = false;                                // inference only, without bias and activation
  std::shared_ptr<const ParameterLayout> weight_layout{};  // null: the op chooses one; canonical (out, in)
};

inline void require_possible(const MatmulDescription& d) {
  require(d.rows > 0 && d.in_features > 0 && d.out_features > 0, ErrorCode::op_description,
          "a matmul ({}, {}) -> {}: all sizes must be positive", d.rows, d.in_features, d.out_features);
  require(!d.fp32_output || (d.inference && !d.bias && d.activation == ActivationFunction::none),
          ErrorCode::op_description, "a matmul with an output in fp32 is for inference, without bias and activation");
  require(!d.fp8 || (d.dtype == DType::bf16 && d.activation == ActivationFunction::none && !d.fp32_output),
          ErrorCode::op_description, "a matmul in fp8 has tensors in bf16, and no activation");
  require(!d.fp8 || (d.rows % 16 == 0 && d.in_features % 16 == 0 && d.out_features % 16 == 0), ErrorCode::not_supported,
          "precision=fp8 needs products whose sizes are multiples of 16, but the model has one of ({}, {}) -> {}: set "
          "precision=bf16{}",
          d.rows, d.in_features, d.out_features,
          d.rows % 16 == 0 ? "" : ", or data.sequence_length to a multiple of 16");
}

struct MatmulCalls {
  struct Forward {
    const void* x = nullptr;       // (M, in)
    const void* weight = nullptr;  // in weight_layout()
    const void* bias = nullptr;    // (out)
    void* y = nullptr;             // (M, out), overwritten; fp32 with fp32_output
  };
  struct Backward {
    const void* dy = nullptr;  // (M, out)
    const void* x = nullptr;
    const void* y = nullptr;  // of forward; read only with relu
    const void* weight = nullptr;
    void* dx = nullptr;  // (M, in)
    GradientMode dx_mode = GradientMode::overwrite;
    void* dweight = nullptr;  // in weight_layout()
    void* dbias = nullptr;    // (out)
    GradientMode parameter_mode = GradientMode::overwrite;
  };
};

class Matmul : public TwoWayOp<MatmulDescription, MatmulCalls> {
 public:
  virtual std::shared_ptr<const ParameterLayout> weight_layout() const = 0;
};

}  // namespace lockstep
