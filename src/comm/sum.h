// Sums over ranks, always in one order: the same bits every time.
#pragma once

#include <cstddef>
#include <span>

#include "lockstep/communicator.h"
#include "lockstep/dtype.h"

namespace lockstep::comm {

/// Every target = the sum of the sources in `order`, elementwise, each n_elements long. A target may be one of the
/// sources; otherwise they do not overlap. fp32 or fp64.
void sum(std::span<const std::byte* const> sources, std::span<std::byte* const> targets, std::size_t n_elements,
         DType dtype, const SumOrder& order);

/// Part `index` of [0, n_elements) cut into `n_parts` of nearly one size, each but the last a multiple of 64 bytes.
struct Part {
  std::size_t begin = 0, n_elements = 0;
};
Part part_of(std::size_t n_elements, std::size_t element_bytes, int n_parts, int index);

}  // namespace lockstep::comm
