// The arena of gradients and batch statistics, at the elements of the parameter arena: fp32, or, with
// train.gradient_type, 16 bits for the parameters that ops read in the compute type only. These come first. With
// train.shard=gradients, parts of the arena share memory, one after another: each has its place.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>

#include "graph/memory_plan.h"
#include "lockstep/dtype.h"
#include "lockstep/element_range.h"

namespace lockstep::graph {

struct GradientLayout {
  std::size_t n_elements = 0;
  std::size_t n_narrow = 0;  // the first ones, in `narrow`
  DType narrow = DType::fp32;
  struct Place {
    std::size_t begin = 0;  // element
    std::size_t offset_bytes = 0;
  };
  std::span<const Place> places{};  // of the elements from each `begin` on; empty: all are one after another
  std::size_t placed_bytes = 0;     // of the memory, if there are places

  DType dtype(std::size_t element) const { return element < n_narrow ? narrow : DType::fp32; }
  std::size_t offset_bytes(std::size_t element) const {
    if (!places.empty()) {
      const Place& place = *(std::ranges::upper_bound(places, element, {}, &Place::begin) - 1);
      return place.offset_bytes + (element - place.begin) * lockstep::size_bytes(dtype(element));
    }
    if (element < n_narrow) return element * lockstep::size_bytes(narrow);
    return aligned(n_narrow * lockstep::size_bytes(narrow)) + (element - n_narrow) * sizeof(float);
  }
  std::size_t size_bytes() const { return places.empty() ? offset_bytes(n_elements) : placed_bytes; }
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
