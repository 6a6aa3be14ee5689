// Resizing of 8-bit pixels along one direction, on the host: weighted sums of neighbours. Weights are fixed point, so
// that the sums are exact and the bytes are the same on every processor. kernels/cpu/base/resize_rows.cpp implements it
// with the vector instructions that the processor has; src/data/resize.h has the formula of the weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep {

inline constexpr int kResizeFractionBits = 22;  // of 32 bits, this leaves 8 for the value and 2 for headroom

/// The neighbours of each output and their weights, which are not negative and add up to 2^kResizeFractionBits, except
/// for rounding.
struct ResizeWeights {
  int max_taps = 0;                   // maximum number of neighbours of an output
  std::vector<int> first, count;      // (outputs): the first neighbour, and their number
  std::vector<std::int32_t> weights;  // (outputs, max_taps)
  /// The same weights in two halves, h 2^11 + l, for products of 16 bits: (outputs, max_taps / 4 rounded up, 8), where
  /// the eight are h0 h1 l0 l1 h2 h3 l2 l3 of four neighbours. Weights beyond `count` are 0.
  std::vector<std::int16_t> halves;

  int n_outputs() const { return static_cast<int>(first.size()); }
  int max_groups() const { return (max_taps + 3) / 4; }  // of four neighbours
  /// Fills `halves`.
  void split();
};

/// Rows of pixels.
struct ResizeRows {
  const std::uint8_t* bytes = nullptr;
  std::ptrdiff_t row_bytes = 0;  // from one row to the next
  int n_rows = 0;
  int width = 0, channels = 0;  // pixels; 1 or 3
};

/// The distance in bytes between two rows that resize_along_rows() writes. It has room for whole vectors after the
/// pixels.
inline std::size_t resized_row_bytes(int n_outputs, int channels) {
  return (static_cast<std::size_t>(n_outputs) * static_cast<std::size_t>(channels) + 4 + 63) / 64 * 64;
}

/// out[y][x][c] = sum_k weights[x][k] in[y][first[x] + k][c], rounded: n_rows rows of resized_row_bytes().
void resize_along_rows(const ResizeRows& in, const ResizeWeights& weights, std::uint8_t* out);

/// One row of the result: out[i] = sum_k weights[k] in[k row_bytes + i], rounded, for i < n_bytes.
void resize_along_columns(const std::uint8_t* in, std::ptrdiff_t row_bytes, const std::int32_t* weights, int n_taps,
                          int n_bytes, std::uint8_t* out);

}  // namespace lockstep
