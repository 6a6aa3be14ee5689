// Fills an array with normal numbers: those that Philox::normal returns one by one, an order of magnitude faster.
#pragma once

#include <span>

#include "lockstep/philox.h"

namespace lockstep::graph {

/// values[i] = scale * random.normal(i), in double and rounded once. Logarithm, sine and cosine are implemented here,
/// to within an ulp or two of libm's, so that the loops are vectorised and every machine gets the same bits.
void fill_normal(const Philox& random, double scale, std::span<float> values);

}  // namespace lockstep::graph
