// Shared by the tests of the cpu backend's convolution: convolutions of many kinds, loops in double that compute them,
// and memory for one op.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cpu/base/context.h"
#include "lockstep/algorithms.h"
#include "lockstep/event.h"
#include "lockstep/ops/conv2d.h"
#include "lockstep/philox.h"

namespace lockstep::cpu {

std::unique_ptr<Conv2d> make_conv2d(const Conv2dDescription&, const CpuContext&);  // conv2d.cpp

namespace conv2d_loops {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// fp32 values, 64-byte aligned as in arenas; NaN until written.
class Buffer {
 public:
  explicit Buffer(std::size_t n) : n_(n), data_(static_cast<float*>(std::aligned_alloc(64, (n * 4 + 127) / 64 * 64))) {
    std::fill_n(data_, n, kNan);
  }
  explicit Buffer(const std::vector<float>& values) : Buffer(values.size()) {
    std::copy(values.begin(), values.end(), data_);
  }
  ~Buffer() { std::free(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  float* data() { return data_; }
  void fill(float value) { std::fill_n(data_, n_, value); }
  std::vector<float> values() const { return {data_, data_ + n_}; }

 private:
  std::size_t n_;
  float* data_;
};

class NoStream final : public Stream {
  void wait(const Event&) override {}
  void synchronize() override {}
};

inline std::vector<float> random_values(std::size_t n, std::uint32_t seed) {
  const Philox philox(seed, RandomPurpose::synthetic, 0, 0);
  std::vector<float> values(n);
  for (std::size_t i = 0; i < n; ++i) values[i] = static_cast<float>(2 * philox.uniform(i) - 1);
  return values;
}

/// The position of (n, h, w, c) in a layout.
inline std::size_t position(const Shape& s, Layout layout, std::int64_t n, std::int64_t h, std::int64_t w,
                            std::int64_t c) {
  if (layout == Layout::nhwc) return static_cast<std::size_t>(((n * s[1] + h) * s[2] + w) * s[3] + c);
  return static_cast<std::size_t>((((n * (s[3] / 16) + c / 16) * s[1] + h) * s[2] + w) * 16 + c % 16);
}

inline std::vector<float> relayout(const Shape& s, const std::vector<float>& from, Layout source, Layout target) {
  std::vector<float> to(from.size());
  for (std::int64_t n = 0; n < s[0]; ++n)
    for (std::int64_t h = 0; h < s[1]; ++h)
      for (std::int64_t w = 0; w < s[2]; ++w)
        for (std::int64_t c = 0; c < s[3]; ++c)
          to[position(s, target, n, h, w, c)] = from[position(s, source, n, h, w, c)];
  return to;
}

/// A sum, and the sum of the absolute values of its terms, which bounds its rounding error.
struct Sum {
  double value = 0, magnitude = 0;
  void add(double a, double b) {
    value += a * b;
    magnitude += std::abs(a * b);
  }
};

struct Naive {
  std::vector<Sum> y, dx, dweight;  // nhwc, nhwc, (K, C, R, S)
};

inline Naive naive(const Conv2dDescription& d, const std::vector<float>& x, const std::vector<float>& weight,
                   const std::vector<float>& dy) {
  const Shape in = d.x, out = d.y();
  Naive result{std::vector<Sum>(dy.size()), std::vector<Sum>(x.size()), std::vector<Sum>(weight.size())};
  for (std::int64_t n = 0; n < in[0]; ++n)
    for (std::int64_t h = 0; h < out[1]; ++h)
      for (std::int64_t w = 0; w < out[2]; ++w)
        for (std::int64_t k = 0; k < out[3]; ++k) {
          const std::size_t o = position(out, Layout::nhwc, n, h, w, k);
          for (std::int64_t r = 0; r < d.kernel_size; ++r)
            for (std::int64_t s = 0; s < d.kernel_size; ++s) {
              const std::int64_t row = h * d.stride + r - d.padding, column = w * d.stride + s - d.padding;
              if (row < 0 || row >= in[1] || column < 0 || column >= in[2]) continue;
              for (std::int64_t c = 0; c < in[3]; ++c) {
                const std::size_t i = position(in, Layout::nhwc, n, row, column, c);
                const auto p = static_cast<std::size_t>(((k * in[3] + c) * d.kernel_size + r) * d.kernel_size + s);
                result.y[o].add(x[i], weight[p]);
                result.dx[i].add(dy[o], weight[p]);
                result.dweight[p].add(dy[o], x[i]);
              }
            }
        }
  return result;
}

/// fp32 sums in any order: each rounding is at most 2^-24 of a partial sum; no case has come close to 16 such
/// roundings.
inline void expect_close(const std::vector<float>& actual, const std::vector<Sum>& expected, double offset,
                         const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double bound = 1e-6 * (expected[i].magnitude + std::abs(offset));
    const double error = std::abs(actual[i] - (expected[i].value + offset));
    ASSERT_TRUE(error <= bound) << what << ", element " << i << ": expected " << expected[i].value + offset
                                << ", found " << actual[i];
  }
}

struct Memory {
  explicit Memory(const OpMemoryRequirements& requirements)
      : workspace(std::max(requirements.forward_workspace_bytes, requirements.backward_workspace_bytes) / 4),
        saved(requirements.saved_bytes / 4) {}
  OpMemory op() { return {workspace.data(), saved.data()}; }
  Buffer workspace, saved;
};

inline Conv2dDescription describe(const Shape& x, std::int64_t out_channels, int kernel_size, int stride, int padding) {
  Conv2dDescription d;
  d.x = x;
  d.out_channels = out_channels;
  d.kernel_size = kernel_size;
  d.stride = stride;
  d.padding = padding;
  return d;
}

inline const std::vector<Conv2dDescription>& cases() {
  static const std::vector<Conv2dDescription> all{
      describe({2, 9, 7, 32}, 48, 3, 1, 1),    // odd sizes
      describe({3, 10, 11, 16}, 32, 3, 2, 1),  // stride 2, a last row that no window covers
      describe({2, 8, 8, 32}, 64, 1, 2, 0),    // a shortcut
      describe({2, 5, 5, 64}, 32, 1, 1, 0),    // 1x1
      describe({1, 20, 17, 3}, 64, 7, 2, 3),   // ImageNet's stem, batch 1
      describe({2, 8, 8, 3}, 64, 3, 1, 1),     // CIFAR's stem
      describe({1, 1, 1, 16}, 16, 3, 1, 1),    // a window larger than the image
      describe({2, 6, 5, 5}, 7, 3, 1, 1),      // channels that fill no vector
      describe({2, 6, 5, 19}, 32, 3, 1, 1),    // x has no blocked layout
      describe({1, 7, 7, 33}, 10, 7, 1, 3),    // a large window
      describe({2, 4, 4, 256}, 512, 1, 2, 0),  // weights that oneDNN pads
  };
  return all;
}

/// Stores `algorithm` for every choice of this convolution.
inline Algorithms remembered(const std::string& algorithm, const Conv2dDescription& d, const CpuContext& context) {
  Algorithms timed;  // collects the keys
  timed.enable_timing();
  (void)make_conv2d(d, {.threads = context.threads, .algorithms = &timed});
  Algorithms::Choices choices = timed.choices();
  for (auto& [key, chosen] : choices) chosen = algorithm;
  return Algorithms(choices);
}

}  // namespace conv2d_loops
}  // namespace lockstep::cpu
