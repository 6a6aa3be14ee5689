#include "inference/adapters.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "checkpoint/model_file.h"
#include "test/support/named_tensors.h"

namespace lockstep::inference {
namespace {

using checkpoint::NamedTensor;

std::vector<NamedTensor> base() {
  return {{"b", {2, 3}, std::vector<float>{1, 2, 3, 4, 5, 6}}, {"a", {2}, std::vector<float>{7, 8}}};
}

TEST(HashOfBase, DependsOnNamesShapesAndValuesAlone) {
  const std::string hash = hash_of_base(base());
  EXPECT_EQ(hash.size(), 16u);
  std::vector<NamedTensor> reversed = base();
  std::swap(reversed[0], reversed[1]);
  EXPECT_EQ(hash_of_base(reversed), hash) << "not on the order";
  std::vector<NamedTensor> other = base();
  other[1] = test::edited(other[1], [](std::vector<float>& values) { values[1] = 9; });
  EXPECT_NE(hash_of_base(other), hash);
  other = base();
  other[0].shape = {3, 2};
  EXPECT_NE(hash_of_base(other), hash);
  other = base();
  other[0].name = "c";
  EXPECT_NE(hash_of_base(other), hash);
}

TEST(HashOfBase, IsKnownOnceAllValuesHaveBeenRead) {
  std::vector<NamedTensor> tensors = base();
  std::vector<std::string> hashes;
  hash_while_read(tensors, [&](const std::string& hash) { hashes.push_back(hash); });
  std::vector<float> piece(4);
  tensors[0].read(0, piece);
  (void)tensors[1].values();
  tensors[0].read(0, piece);  // again
  EXPECT_TRUE(hashes.empty());
  piece.resize(2);
  tensors[0].read(4, piece);
  (void)tensors[0].values();
  EXPECT_EQ(hashes, std::vector<std::string>{hash_of_base(base())});
}

TEST(Merged, IsTheSameInPiecesOfAnySize) {
  constexpr std::size_t kOut = 5, kIn = 7, kRank = 2;
  const auto values = [](std::size_t n, float scale) {
    std::vector<float> out(n);
    for (std::size_t i = 0; i < n; ++i) out[i] = scale * (static_cast<float>(i * 37 % 11) - 5);
    return out;
  };
  const std::vector<float> w = values(kOut * kIn, 0.5f), a = values(kRank * kIn, 0.25f), b = values(kOut * kRank, 0.1f);
  const std::string layer = "model.layers.0.self_attn.q_proj";
  const checkpoint::ModelFile file = merged(
      {.path = "model",
       .state = {{"model", {{"family", "llama"}, {"lora.rank", 2}, {"lora.alpha", 6.0}, {"lora.targets", {"q"}}}}},
       .tensors = {{layer + ".weight", {kOut, kIn}, w},
                   {layer + ".lora_A.weight", {kRank, kIn}, a},
                   {layer + ".lora_B.weight", {kOut, kRank}, b}}});
  ASSERT_EQ(file.tensors.size(), 1u);
  std::vector<float> expected;
  for (std::size_t o = 0; o < kOut; ++o)
    for (std::size_t i = 0; i < kIn; ++i) {
      double sum = 0;
      for (std::size_t r = 0; r < kRank; ++r) sum += 3 * double{b[o * kRank + r]} * double{a[r * kIn + i]};
      expected.push_back(static_cast<float>(double{w[o * kIn + i]} + sum));
    }
  EXPECT_EQ(file.tensors[0].values(), expected);
  for (const std::size_t n : {1, 3, 7, 10}) {
    std::vector<float> got;
    for (std::size_t first = 0; first < expected.size(); first += n) {
      std::vector<float> piece(std::min(n, expected.size() - first));
      file.tensors[0].read(first, piece);
      got.insert(got.end(), piece.begin(), piece.end());
    }
    EXPECT_EQ(got, expected) << "pieces of " << n;
  }
}

}  // namespace
}  // namespace lockstep::inference
