#include "test/support/tensor.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "lockstep/philox.h"

namespace lockstep::test {
namespace {

/// `to` receives the nhwc index of every element, in blocked order.
template <typename Visit>
void for_each_blocked(const Shape& shape, Visit visit) {
  constexpr std::int64_t kBlock = 16;
  const std::int64_t pixels = shape[1] * shape[2];
  std::size_t blocked = 0;
  for (std::int64_t n = 0; n < shape[0]; ++n)
    for (std::int64_t block = 0; block < shape[3] / kBlock; ++block)
      for (std::int64_t pixel = 0; pixel < pixels; ++pixel)
        for (std::int64_t c = block * kBlock; c < (block + 1) * kBlock; ++c)
          visit(blocked++, static_cast<std::size_t>((n * pixels + pixel) * shape[3] + c));
}

}  // namespace

std::vector<float> random_normal(std::int64_t n_elements, std::uint32_t stream) {
  const Philox random(7, RandomPurpose::synthetic, stream, 0);
  std::vector<float> values(static_cast<std::size_t>(n_elements));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(random.normal(i));
  return values;
}

std::vector<float> random_uniform(std::int64_t n_elements, std::uint32_t stream, double low, double high) {
  const Philox random(7, RandomPurpose::synthetic, stream, 1);
  std::vector<float> values(static_cast<std::size_t>(n_elements));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(low + (high - low) * random.uniform(i));
  return values;
}

std::vector<float> to_layout(const Shape& shape, Layout layout, const std::vector<float>& nhwc) {
  if (layout == Layout::nhwc) return nhwc;
  std::vector<float> result(nhwc.size());
  for_each_blocked(shape, [&](std::size_t to, std::size_t from) { result[to] = nhwc[from]; });
  return result;
}

std::vector<float> from_layout(const Shape& shape, Layout layout, const std::vector<float>& blocked) {
  if (layout == Layout::nhwc) return blocked;
  std::vector<float> result(blocked.size());
  for_each_blocked(shape, [&](std::size_t from, std::size_t to) { result[to] = blocked[from]; });
  return result;
}

bool fits(const Shape& shape, Layout layout) { return layout == Layout::nhwc || shape[3] % 16 == 0; }

std::vector<std::uint16_t> bf16_bits(const std::vector<float>& values) {
  std::vector<std::uint16_t> bits;
  for (const float value : values) {
    // 8 significant bits: the value is scaled so that nearbyint() rounds it to them.
    const int exponent = value == 0 || !std::isfinite(value) ? 0 : 7 - std::ilogb(value);
    const auto rounded = static_cast<float>(std::ldexp(std::nearbyint(std::ldexp(double{value}, exponent)), -exponent));
    bits.push_back(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(rounded) >> 16));
  }
  return bits;
}

std::vector<float> from_bf16_bits(const std::vector<std::uint16_t>& bits) {
  std::vector<float> values;
  for (const std::uint16_t b : bits) values.push_back(std::bit_cast<float>(std::uint32_t{b} << 16));
  return values;
}

std::vector<std::uint16_t> fp16_bits(const std::vector<float>& values) {
  std::vector<std::uint16_t> bits;
  for (const float value : values) {
    const double magnitude = std::abs(double{value});
    int rounded = 0x7e00;  // NaN
    if (magnitude >= 65520) {
      rounded = 0x7c00;
    } else if (magnitude >= 0x1p-14) {
      const int exponent = std::ilogb(magnitude);  // 11 significant bits; a carry moves into the exponent
      rounded = ((exponent + 14) << 10) + static_cast<int>(std::nearbyint(std::ldexp(magnitude, 10 - exponent)));
    } else if (magnitude >= 0) {
      rounded = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 24)));
    }
    bits.push_back(static_cast<std::uint16_t>(rounded | (std::signbit(value) ? 0x8000 : 0)));
  }
  return bits;
}

std::vector<float> from_fp16_bits(const std::vector<std::uint16_t>& bits) {
  std::vector<float> values;
  for (const std::uint16_t b : bits) {
    const int exponent = b >> 10 & 31, mantissa = b & 1023;
    double magnitude = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
    if (exponent == 31) magnitude = mantissa == 0 ? INFINITY : NAN;
    values.push_back(static_cast<float>((b & 0x8000) != 0 ? -magnitude : magnitude));
  }
  return values;
}

std::vector<float> rounded_to(DType dtype, const std::vector<float>& values) {
  if (dtype == DType::bf16) return from_bf16_bits(bf16_bits(values));
  if (dtype == DType::fp16) return from_fp16_bits(fp16_bits(values));
  return values;
}

std::vector<float> absolute(std::vector<float> values) {
  for (float& value : values) value = std::abs(value);
  return values;
}

std::vector<double> to_double(const std::vector<float>& values) { return {values.begin(), values.end()}; }

std::string text(Layout layout) { return std::string(name(layout)); }

std::string text(GradientMode mode) {
  return mode == GradientMode::skip ? "skip" : mode == GradientMode::overwrite ? "overwrite" : "accumulate";
}

}  // namespace lockstep::test
