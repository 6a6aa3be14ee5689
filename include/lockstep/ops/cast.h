// target = source, elementwise, rounded to nearest, ties to even: fp32 to bf16 or fp16, or back; or target += source,
// where the target is fp32.
// Planning throws not_supported for other pairs of types.
#pragma once

#include <cstddef>

#include "lockstep/dtype.h"
#include "lockstep/op.h"

namespace lockstep {

struct CastDescription {
  using Op = class Cast;
  static constexpr std::string_view kName = "cast";

  DType from = DType::fp32;
  DType to = DType::bf16;
};

struct CastCalls {
  struct Apply {
    const void* source = nullptr;
    void* target = nullptr;  // must not overlap the source
    std::size_t n_elements = 0;
    bool accumulate = false;  // target += source
  };
};

class Cast : public ApplyOp<CastDescription, CastCalls> {};

}  // namespace lockstep
