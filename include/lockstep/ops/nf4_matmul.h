// Matmul with a frozen weight that is stored in NF4 (lockstep/nf4.h): y (M, out) = x (M, in) * weight^T (in, out) +
// bias
//     dx = dy * weight; the weight and the bias have no gradient
// Elements of the weight are rounded to the type of x before they are multiplied, as if it were stored in that type.
// The whole weight never exists in that type: backends expand a few of its rows at a time, or columns for dx, which
// does not change the sums. x, y, dx, dy and bias have one type; sums are fp32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/dtype.h"
#include "lockstep/error.h"
#include "lockstep/nf4.h"
#include "lockstep/op.h"

namespace lockstep {

struct Nf4MatmulDescription {
  using Op = class Nf4Matmul;
  static constexpr std::string_view kName = "nf4_matmul";

  std::int64_t rows = 0;  // M
  std::int64_t in_features = 0;
  std::vector<std::int64_t> matrices{};  // rows of each matrix of the weight; they add up to out_features()
  DType dtype = DType::fp32;
  bool tf32 = false;  // fp32 may be rounded to tf32 inside the multiply
  bool bias = false;
  bool input_gradient = true;
  bool inference = false;

  std::int64_t out_features() const {
    std::int64_t n = 0;
    for (const std::int64_t n_rows : matrices) n += n_rows;
    return n;
  }
};

/// Throws op_description unless the sizes are possible.
inline void require_possible(const Nf4MatmulDescription& d) {
  bool is_possible = d.rows > 0 && d.in_features > 0 && !d.matrices.empty();
  for (const std::int64_t n_rows : d.matrices) is_possible = is_possible && n_rows > 0;
  require(is_possible, ErrorCode::op_description,
          "a product of {} rows of {} elements with {} matrices in NF4: all sizes must be positive", d.rows,
          d.in_features, d.matrices.size());
}

struct Nf4MatmulCalls {
  struct Forward {
    const void* x = nullptr;              // (M, in)
    const std::byte* weight = nullptr;    // in the layout of Nf4Layout
    const float* scale_values = nullptr;  // (kNf4ScaleValues)
    const void* bias = nullptr;           // (out)
    void* y = nullptr;                    // (M, out), overwritten
  };
  struct Backward {
    const void* dy = nullptr;  // (M, out)
    const std::byte* weight = nullptr;
    const float* scale_values = nullptr;
    void* dx = nullptr;  // (M, in)
    GradientMode dx_mode = GradientMode::overwrite;
  };
};

class Nf4Matmul : public TwoWayOp<Nf4MatmulDescription, Nf4MatmulCalls> {};

}  // namespace lockstep
