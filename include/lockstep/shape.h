// A shape of up to four dimensions, row-major, the last one contiguous.
// Letters used everywhere: N samples of a micro-batch on one rank, H height, W width,
// C channels, K output channels, R x S the kernel size of a convolution (height x width).
// Images are (N, H, W, C); convolution weights in canonical form (K, C, R, S), as torchvision has them.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

namespace lockstep {

class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<std::int64_t> dims) {
    for (std::int64_t d : dims) dims_.at(static_cast<std::size_t>(rank_++)) = d;
  }

  int rank() const { return rank_; }
  std::int64_t operator[](int i) const { return dims_[static_cast<std::size_t>(i)]; }
  std::int64_t n_elements() const {
    std::int64_t n = 1;
    for (int i = 0; i < rank_; ++i) n *= (*this)[i];
    return n;
  }
  /// The same shape with dimension `i` replaced; -1 is the last one.
  Shape with_dimension(int i, std::int64_t n) const {
    Shape out = *this;
    out.dims_.at(static_cast<std::size_t>(i < 0 ? rank_ + i : i)) = n;
    return out;
  }
  std::int64_t last() const { return (*this)[rank_ - 1]; }
  bool operator==(const Shape&) const = default;

  /// "(32, 8, 8, 256)"
  std::string text() const {
    std::string out = "(";
    for (int i = 0; i < rank_; ++i) out += (i ? ", " : "") + std::to_string((*this)[i]);
    return out + ")";
  }

 private:
  std::array<std::int64_t, 4> dims_{};
  int rank_ = 0;
};

}  // namespace lockstep
