// Philox4x32-10 against the known answers of Random123 (tests/kat_vectors), and the numbers derived from it.
#include "lockstep/philox.h"

#include <gtest/gtest.h>

#include <set>

namespace lockstep {
namespace {

using Block = std::array<std::uint32_t, 4>;

TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr std::uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(philox4x32({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, UsesTheDocumentedKeyAndCounter) {
  const Philox random(12, RandomPurpose::crop, 34, 56);
  EXPECT_EQ(random.block(0x700000009), philox4x32({9, 7, 34, 56}, {12, 3}));
}

TEST(Philox, UniformIsInsideTheUnitInterval) {
  constexpr std::uint32_t kOnes = 0xffffffff;
  EXPECT_GT(Philox::uniform({0, 0, 0, 0}, 0), 0.0);
  EXPECT_LE(Philox::uniform({kOnes, kOnes, 0, 0}, 0), 1.0);
  EXPECT_GT(Philox::uniform({kOnes, kOnes, 0, 0}, 0), 0.999999999);
  const Philox random(1, RandomPurpose::weights, 2, 0);
  constexpr int kNumbers = 100000;
  double sum = 0, squares = 0;
  for (int i = 0; i < kNumbers; ++i) {
    const double u = random.uniform(static_cast<std::uint64_t>(i));
    ASSERT_GT(u, 0.0);
    ASSERT_LT(u, 1.0);
    sum += u;
    squares += u * u;
  }
  // Five standard deviations of the means of 1e5: sqrt(1/12 / 1e5) = 9e-4, sqrt(4/45 / 1e5) = 9.4e-4.
  EXPECT_NEAR(sum / kNumbers, 0.5, 4.6e-3);
  EXPECT_NEAR(squares / kNumbers, 1.0 / 3, 4.7e-3);
}

TEST(Philox, BelowStaysInItsRange) {
  EXPECT_EQ(Philox::below(0, 9), 0u);
  EXPECT_EQ(Philox::below(0xffffffff, 9), 8u);
  EXPECT_EQ(Philox::below(0xffffffff, 1), 0u);
  const Philox random(1, RandomPurpose::crop, 0, 0);
  std::array<int, 9> counts{};
  for (std::uint64_t i = 0; i < 9000; ++i) ++counts[Philox::below(random.block(i)[0], 9)];
  // 1000 expected in each bin; 150 is five standard deviations of 30.
  for (int count : counts) EXPECT_NEAR(count, 1000, 150);
}

TEST(Philox, NormalNumbersHaveNormalMoments) {
  const Philox random(1, RandomPurpose::weights, name_hash("conv1.weight"), 0);
  constexpr int kNumbers = 200000;
  std::array<double, 5> moments{};
  double pairs = 0;
  for (int i = 0; i < kNumbers; ++i) {
    const double x = random.normal(static_cast<std::uint64_t>(i));
    for (int power = 1; power <= 4; ++power) moments[static_cast<std::size_t>(power)] += std::pow(x, power) / kNumbers;
    if (i % 2 == 1) pairs += x * random.normal(static_cast<std::uint64_t>(i - 1)) / (kNumbers / 2);
  }
  // Five standard deviations of each mean of 2e5 numbers: the variances of x, x^2, x^3, x^4 are 1, 2, 15, 96.
  EXPECT_NEAR(moments[1], 0, 0.0112);
  EXPECT_NEAR(moments[2], 1, 0.0159);
  EXPECT_NEAR(moments[3], 0, 0.0434);
  EXPECT_NEAR(moments[4], 3, 0.11);
  EXPECT_NEAR(pairs, 0, 0.0159);  // the two numbers of a block are independent
}

TEST(Philox, StreamsDiffer) {
  std::set<Block> blocks;
  for (std::uint32_t seed : {0u, 1u})
    for (RandomPurpose purpose : {RandomPurpose::weights, RandomPurpose::shuffle, RandomPurpose::flip})
      for (std::uint32_t stream : {0u, 1u})
        for (std::uint32_t epoch : {0u, 1u})
          for (std::uint64_t index : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1} << 32})
            blocks.insert(Philox(seed, purpose, stream, epoch).block(index));
  EXPECT_EQ(blocks.size(), 72u);
}

TEST(Philox, NameHashIsFnv1a) {
  EXPECT_EQ(name_hash(""), 0x811c9dc5u);
  EXPECT_EQ(name_hash("a"), 0xe40c292cu);
  EXPECT_EQ(name_hash("foobar"), 0xbf9cf968u);
}

}  // namespace
}  // namespace lockstep
