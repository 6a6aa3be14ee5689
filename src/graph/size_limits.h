// Sizes that ops can address. Libraries count the elements of one sample, the positions of all samples and the elements
// of a parameter in 32-bit integers; larger sizes make them crash or compute wrong results. Everything up to these
// limits fits into 64-bit sums of bytes.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/shape.h"

namespace lockstep::graph {

inline constexpr std::int64_t kMaxElements = 0x7fffffff;          // of one sample's activation, or of a parameter
inline constexpr std::int64_t kMaxBatch = std::int64_t{1} << 24;  // samples of a rank at once

enum class Mode : std::uint8_t;

/// Throws op_description. The first dimension is the batch, the last one the channels. The mode decides which key the
/// message names.
void require_possible_activation(const std::string& name, const Shape& shape, Mode mode);
void require_possible_parameter(const std::string& name, const Shape& shape);

}  // namespace lockstep::graph
