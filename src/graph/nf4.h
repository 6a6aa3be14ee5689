// Quantising a matrix to NF4 (lockstep/nf4.h), with the bits of bitsandbytes' build for CPUs (quantize_4bit with
// compress_statistics, on one thread): the scale of a block is its greatest magnitude; an element becomes the nearest
// value of the quotient, and the lower one of two that are equally near. The scales minus their mean are quantised to
// 8 bits by a table of 65,536 quotients. The mean is summed as PyTorch does on x86: eight lanes, four sums of each, and
// partial sums of them.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "lockstep/nf4.h"

namespace lockstep::graph {

/// The values of the scale codes, ascending: the dynamic map of Dettmers, "8-bit Optimizers via Block-wise
/// Quantization", 2022.
const std::array<float, kNf4ScaleValues>& nf4_scale_values();

/// `matrix`: its elements, row-major. Writes what belongs to it in `parameter`.
void quantize_nf4(std::span<const float> matrix, const Nf4Matrix& at, std::span<std::byte> parameter);
/// The elements of a matrix of `n_elements`, not rounded to another type than fp32.
std::vector<float> dequantize_nf4(std::size_t n_elements, const Nf4Matrix& at, std::span<const std::byte> parameter);

}  // namespace lockstep::graph
