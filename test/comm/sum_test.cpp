#include "comm/sum.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "lockstep/error.h"

namespace lockstep::comm {
namespace {

template <typename T>
void test_order(DType dtype, int ranks, std::size_t n) {
  std::vector<std::vector<T>> values(static_cast<std::size_t>(ranks), std::vector<T>(n));
  std::vector<T> expected(n);
  for (std::size_t r = 0; r < values.size(); ++r) {
    for (std::size_t i = 0; i < n; ++i) {
      values[r][i] = static_cast<T>((r % 2 == 0 ? 1e7 : -3.3) / static_cast<double>(i % 97 + r + 1));
      expected[i] += values[r][i];  // from 0: the first addition is exact
    }
  }
  std::vector<const std::byte*> sources;
  std::vector<std::byte*> targets;
  for (auto& of_rank : values) {
    sources.push_back(reinterpret_cast<const std::byte*>(of_rank.data()));
    targets.push_back(reinterpret_cast<std::byte*>(of_rank.data()));
  }
  // Into the last one only: the other sources stay.
  std::vector<T> before = values[0];
  std::vector<T> separate(n);
  sum(sources, std::vector{reinterpret_cast<std::byte*>(separate.data())}, n, dtype);
  EXPECT_EQ(separate, expected) << ranks << " ranks, " << n;
  EXPECT_EQ(values[0], before);
  sum(sources, targets, n, dtype);
  for (const auto& of_rank : values) EXPECT_EQ(of_rank, expected) << ranks << " ranks, " << n;
}

TEST(Sum, InTheOrderOfRanksToTheBit) {
  for (const int ranks : {1, 2, 3, 5, 8}) {
    for (const std::size_t n :
         {std::size_t{0}, std::size_t{1}, std::size_t{15}, std::size_t{1023}, std::size_t{1025}, std::size_t{5000}}) {
      test_order<float>(DType::fp32, ranks, n);
      test_order<double>(DType::fp64, ranks, n);
    }
  }
}

TEST(Sum, RefusesOtherTypes) {
  std::int32_t x = 1;
  std::byte* data = reinterpret_cast<std::byte*>(&x);
  EXPECT_THROW(sum(std::vector<const std::byte*>{data}, std::vector{data}, 1, DType::int32), Error);
}

TEST(PartOf, PartsTileWithoutOverlapOnCacheLines) {
  for (const std::size_t element_bytes : {std::size_t{1}, std::size_t{4}, std::size_t{8}}) {
    for (const int parts : {1, 2, 3, 7, 64}) {
      for (const std::size_t n :
           {std::size_t{0}, std::size_t{1}, std::size_t{16}, std::size_t{17}, std::size_t{1000}, std::size_t{100003}}) {
        std::size_t end = 0;
        for (int i = 0; i < parts; ++i) {
          const Part part = part_of(n, element_bytes, parts, i);
          EXPECT_EQ(part.begin, end);
          if (part.n_elements > 0) {
            EXPECT_EQ(part.begin * element_bytes % 64, 0u);
          }
          end = part.begin + part.n_elements;
        }
        EXPECT_EQ(end, n);
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::comm
