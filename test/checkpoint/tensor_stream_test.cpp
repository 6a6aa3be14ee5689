#include "checkpoint/tensor_stream.h"

#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/error.h"
#include "test/checkpoint/support.h"

namespace lockstep::checkpoint::test {
namespace {

constexpr std::int64_t kLarge = (9 << 20) + 3;  // more than is read at once

float value(std::size_t tensor, std::size_t i) { return static_cast<float>(tensor * 1000 + i % 997); }

/// Three tensors: a small one, a large one, a small one. `n_reads` counts the calls, whatever the rank.
std::vector<NamedTensor> counted_tensors(std::atomic<int>& n_reads) {
  std::vector<NamedTensor> out;
  for (const std::int64_t n : {std::int64_t{5}, kLarge, std::int64_t{7}})
    out.emplace_back("t" + std::to_string(out.size()), Shape{n},
                     [&n_reads, tensor = out.size()](std::size_t first, std::span<float> to) {
                       ++n_reads;
                       for (std::size_t i = 0; i < to.size(); ++i) to[i] = value(tensor, first + i);
                     });
  return out;
}

TEST(TensorStream, AllRanksOfANodeGetAllValuesInOrderAndOneReads) {
  std::atomic<int> n_reads{0}, n_wrong{0};
  for (const int size : {1, 3}) {
    n_reads = 0;
    const auto errors = on_ranks(size, [&](World& world) {
      std::vector<std::size_t> n(3);
      stream_tensors("model", counted_tensors(n_reads), world, [&](const TensorPiece& piece) {
        n_wrong += piece.first == n[piece.tensor] ? 0 : 1;
        for (std::size_t i = 0; i < piece.values.size(); ++i)
          n_wrong += piece.values[i] == value(piece.tensor, piece.first + i) ? 0 : 1;
        n[piece.tensor] += piece.values.size();
      });
      n_wrong += n == std::vector<std::size_t>{5, static_cast<std::size_t>(kLarge), 7} ? 0 : 1;
    });
    EXPECT_EQ(errors, std::vector<std::string>(static_cast<std::size_t>(size)));
    EXPECT_EQ(n_reads, 4) << "pieces: the large tensor has two";
  }
  EXPECT_EQ(n_wrong, 0);
}

TEST(TensorStream, AFailureOfOneRankEndsAll) {
  std::atomic<int> n_reads{0};
  const auto of_reading = on_ranks(2, [&](World& world) {
    std::vector<NamedTensor> tensors = counted_tensors(n_reads);
    tensors[2].read = [](std::size_t, std::span<float>) { fail(ErrorCode::model_file_damaged, "the last shard"); };
    stream_tensors("model", tensors, world, [](const TensorPiece&) {});
  });
  const auto of_taking = on_ranks(2, [&](World& world) {
    stream_tensors("model", counted_tensors(n_reads), world, [&](const TensorPiece& piece) {
      if (world.rank() == 1 && piece.first > 0) fail(ErrorCode::out_of_memory, "no place");
    });
  });
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_NE(of_reading[static_cast<std::size_t>(rank)].find("the last shard"), std::string::npos);
    EXPECT_NE(of_taking[static_cast<std::size_t>(rank)].find("no place"), std::string::npos);
  }
}

TEST(TensorStream, ValuesThatNoModelHasAreNamed) {
  std::atomic<int> n_reads{0};
  const auto errors = on_ranks(1, [&](World& world) {
    std::vector<NamedTensor> tensors = counted_tensors(n_reads);
    std::vector<float> values(5);
    values[3] = std::numeric_limits<float>::infinity();
    tensors[0] = {"embedding", {5}, values};
    stream_tensors("model", tensors, world, [](const TensorPiece&) {});
  });
  EXPECT_NE(errors[0].find("embedding of model is not finite"), std::string::npos) << errors[0];
}

TEST(TensorStream, ValuesThatComeAtOnceAreReadOnce) {
  int n_reads = 0;
  const NamedTensor tensor("t", {6}, read_at_once([&] {
                             ++n_reads;
                             return std::vector<float>{0, 1, 2, 3, 4, 5};
                           }));
  std::vector<float> part(2);
  for (std::size_t first = 0; first < 6; first += 2) {
    tensor.read(first, part);
    EXPECT_EQ(part[1], static_cast<float>(first + 1));
  }
  EXPECT_EQ(n_reads, 1);
  EXPECT_EQ(tensor.values().size(), 6u);
  EXPECT_EQ(n_reads, 2) << "nothing is kept after the last value";
}

}  // namespace
}  // namespace lockstep::checkpoint::test
