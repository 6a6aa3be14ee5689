// Sizes that users write, and the median.
#include "base/numbers.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(ByteSize, HasTheUnitsOfTransformers) {
  EXPECT_EQ(parse_byte_size("5GB"), 5'000'000'000u);
  EXPECT_EQ(parse_byte_size("500MB"), 500'000'000u);
  EXPECT_EQ(parse_byte_size("1GiB"), std::uint64_t{1} << 30);
  EXPECT_EQ(parse_byte_size("1.5 kib"), 1536u);
  EXPECT_EQ(parse_byte_size("2tb"), 2'000'000'000'000u);
  EXPECT_EQ(parse_byte_size("7B"), 7u);
  EXPECT_EQ(parse_byte_size("0.5KB"), 500u);
}

TEST(ByteSize, RefusesWhatIsNoSize) {
  for (const char* text : {"", "GB", "5", "5 parsecs", "-1GB", "0GB", "0.1B", "1e3GB", "inf GB", "nanGB", "5GB2",
                           " 5GB", "9999999999TB", "0x10MB"})
    EXPECT_FALSE(parse_byte_size(text).has_value()) << text;
}

TEST(Median, IsTheMiddle) {
  EXPECT_DOUBLE_EQ(median({3, 1, 2}), 2);
  EXPECT_DOUBLE_EQ(median({4, 1, 2, 3}), 2.5);
  EXPECT_DOUBLE_EQ(median({}), 0);
}

}  // namespace
}  // namespace lockstep
