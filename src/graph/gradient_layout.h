// The arena of gradients and batch statistics, at the elements of the parameter arena: fp32, or, with
// train.gradient_type, 16 bits for the parameters that ops read in the compute type only. These come first.
#pragma once

#include <array>
#include <cstddef>

#include "graph/memory_plan.h"
#include "lockstep/dtype.h"
#include "lockstep/element_range.h"

namespace lockstep::graph {

struct GradientLayout {
  std::size_t n_elements = 0;
  std::size_t n_narrow = 0;  // the first ones, in `narrow`
  DType narrow = DType::fp32;

  DType dtype(std::size_t element) const { return element < n_narrow ? narrow : DType::fp32; }
  std::size_t offset_bytes(std::size_t element) const {
    if (element < n_narrow) return element * lockstep::size_bytes(narrow);
    return aligned(n_narrow * lockstep::size_bytes(narrow)) + (element - n_narrow) * sizeof(float);
  }
  std::size_t size_bytes() const { return offset_bytes(n_elements); }
  /// The parts with one type, of which the first may be empty.
  std::array<ElementRange, 2> parts() const { return {{{0, n_narrow}, {n_narrow, n_elements - n_narrow}}}; }
};

/// Such an arena in memory.
struct GradientArena {
  std::byte* data = nullptr;
  GradientLayout layout{};
  TypedPointer at(std::size_t element) const { return {data + layout.offset_bytes(element), layout.dtype(element)}; }
};

}  // namespace lockstep::graph
