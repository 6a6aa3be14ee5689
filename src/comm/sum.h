// Sums over ranks, always in the order in which the sources are given: the same bits every time.
#pragma once

#include <cstddef>
#include <span>

#include "lockstep/dtype.h"

namespace lockstep::comm {

/// Every target = sources[0] + sources[1] + ..., elementwise, each n_elements long. A target may be one of the sources;
/// otherwise they do not overlap. fp32 or fp64.
void sum(std::span<const std::byte* const> sources, std::span<std::byte* const> targets, std::size_t n_elements,
         DType dtype);

/// Part `index` of [0, n_elements) cut into `n_parts` of nearly one size, each but the last a multiple of 64 bytes.
struct Part {
  std::size_t begin = 0, n_elements = 0;
};
Part part_of(std::size_t n_elements, std::size_t element_bytes, int n_parts, int index);

}  // namespace lockstep::comm
