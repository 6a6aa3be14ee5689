// fp16 in host memory: every value converted to fp32 and back, and rounding as in test/support/tensor.h, which uses
// double.
#include "lockstep/fp16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "test/support/tensor.h"

namespace lockstep {
namespace {

TEST(Fp16, ConvertsEveryNumberBackToItself) {
  std::vector<std::uint16_t> bits;
  for (unsigned i = 0; i < 0x10000; ++i) bits.push_back(static_cast<std::uint16_t>(i));
  const std::vector<float> values = test::from_fp16_bits(bits);
  for (const std::uint16_t b : bits) {
    const float value = to_float(Fp16{b});
    if (std::isnan(values[b])) {
      ASSERT_TRUE(std::isnan(value)) << b;
      ASSERT_TRUE(std::isnan(to_float(to_fp16(value)))) << b;
    } else {
      ASSERT_EQ(std::memcmp(&value, &values[b], sizeof(value)), 0) << b << ": " << value;
      ASSERT_EQ(to_fp16(value).bits, b) << value;
    }
  }
}

TEST(Fp16, RoundsToNearestEven) {
  std::vector<float> values;  // around every fp16 number and every midpoint between two
  for (unsigned i = 0; i < 0x7c00; ++i) {
    const float low = to_float(Fp16{static_cast<std::uint16_t>(i)});
    const float high = i == 0x7bff ? 65536 : to_float(Fp16{static_cast<std::uint16_t>(i + 1)});
    for (const float at : {low, low + (high - low) / 2})
      for (const float value : {std::nextafter(at, -1.0f), at, std::nextafter(at, 1e6f)})
        for (const float sign : {1.0f, -1.0f}) values.push_back(sign * value);
  }
  const std::vector<std::uint16_t> expected = test::fp16_bits(values);
  for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(to_fp16(values[i]).bits, expected[i]) << values[i];
}

}  // namespace
}  // namespace lockstep
