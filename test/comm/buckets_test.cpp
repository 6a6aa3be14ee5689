// ranks: 1 2 3
// Buckets, and their sums over ranks during the backward pass.
#include "comm/buckets.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "test/comm/bucket_list.h"
#include "test/comm/test_world.h"
#include "test/reference/backend.h"

namespace lockstep::comm {
namespace {

/// Tensors of these lengths. Each begins at a multiple of 16 elements.
std::vector<GradientTensor> tensors_of(const std::vector<std::size_t>& lengths) {
  std::vector<GradientTensor> out;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    out.push_back({"tensor" + std::to_string(i), begin, lengths[i]});
    begin = (begin + lengths[i] + 15) / 16 * 16;
  }
  return out;
}

std::size_t end_of(const std::vector<GradientTensor>& tensors) {
  return tensors.back().begin + tensors.back().n_elements;
}

}  // namespace

TEST(Buckets, EndAtTensorBoundaries) {
  const std::vector<GradientTensor> tensors = tensors_of({100, 3, 1000, 7, 20, 500, 1});
  const std::vector<Bucket> buckets = make_buckets(tensors, 400 * sizeof(float));
  ASSERT_EQ(buckets.size(), 3u);
  EXPECT_EQ(buckets[0].begin, 0u);
  EXPECT_EQ(buckets[0].last_tensor, 2);
  EXPECT_EQ(buckets[0].n_elements, tensors[2].begin + 1000);
  EXPECT_EQ(buckets[0].first_name, "tensor0");
  EXPECT_EQ(buckets[0].last_name, "tensor2");
  EXPECT_EQ(buckets[1].begin, tensors[3].begin);
  EXPECT_EQ(buckets[1].last_tensor, 5);
  EXPECT_EQ(buckets[2].last_tensor, 6);
  EXPECT_EQ(buckets[2].begin + buckets[2].n_elements, end_of(tensors));
}

TEST(Buckets, RangeFromOnePerTensorToOneForAll) {
  const std::vector<GradientTensor> tensors = tensors_of({5, 6, 7});
  EXPECT_EQ(make_buckets(tensors, 1).size(), 3u);
  EXPECT_EQ(make_buckets(tensors, std::size_t{1} << 40).size(), 1u);
  EXPECT_TRUE(make_buckets({}, 100).empty());
}

TEST(Buckets, DoNotMixWireTypes) {
  std::vector<GradientTensor> tensors = tensors_of({1000, 1000, 1000});
  tensors[0].wire = tensors[1].wire = DType::bf16;
  const std::vector<Bucket> buckets = make_buckets(tensors, std::size_t{1} << 40);
  ASSERT_EQ(buckets.size(), 2u);
  EXPECT_EQ(buckets[0].wire, DType::bf16);
  EXPECT_EQ(buckets[0].last_tensor, 1);
  EXPECT_EQ(buckets[1].wire, DType::fp32);
  EXPECT_EQ(buckets[1].begin, tensors[2].begin);
}

/// An embedding is complete only at the end of the backward pass: its parts are summed one after another.
TEST(Buckets, DivideLargeTensors) {
  const std::vector<GradientTensor> tensors = tensors_of({100, 10 * kTileElements + 5, 100});
  const std::vector<Bucket> buckets = make_buckets(tensors, 3 * kTileElements * sizeof(float));
  ASSERT_EQ(buckets.size(), 5u);
  EXPECT_EQ(buckets[0].last_tensor, 0) << "the small tensor before it does not wait for it";
  std::size_t end = tensors[1].begin;
  for (std::size_t b = 1; b <= 3; ++b) {
    EXPECT_EQ(buckets[b].begin, end);
    EXPECT_EQ((buckets[b].begin - tensors[1].begin) % kTileElements, 0u);
    EXPECT_EQ(buckets[b].first_name, "tensor1");
    EXPECT_EQ(buckets[b].last_tensor, 1);
    EXPECT_NEAR(static_cast<double>(buckets[b].n_elements), 10.0 / 3 * kTileElements, kTileElements);
    end = buckets[b].end();
  }
  EXPECT_EQ(end, tensors[1].begin + tensors[1].n_elements);
  EXPECT_EQ(buckets[4].begin, tensors[2].begin);
}

/// Shards are equal and consist of tiles of the arena. What they leave over is less than a tile per rank.
TEST(Buckets, AreDividedIntoShards) {
  constexpr std::size_t kTile = kTileElements;
  std::vector<GradientTensor> tensors =
      tensors_of({3 * kTile + 7, 5, kTile, 40 * kTile + 11, 2 * kTile, 300 * kTile, 100, 33});
  for (std::size_t i = 0; i < 6; ++i) tensors[i].can_be_sharded = true;
  for (const int n_shards : {1, 2, 3, 8, 100})
    for (const std::size_t bucket_bytes : {std::size_t{1}, 5 * kTile * sizeof(float), std::size_t{1} << 40}) {
      std::size_t end = 0, n_sharded = 0;
      bool is_first_whole = true;
      for (const Bucket& bucket : make_buckets(tensors, bucket_bytes, n_shards)) {
        EXPECT_LT(bucket.begin - end, 16u) << "only padding is left out";
        end = bucket.end();
        EXPECT_GT(bucket.n_elements, 0u);
        const GradientTensor& last = tensors[static_cast<std::size_t>(bucket.last_tensor)];
        EXPECT_GE(bucket.end(), last.begin);
        EXPECT_LE(bucket.end(), last.begin + last.n_elements + 15);
        if (!bucket.is_sharded()) {
          if (n_shards > 1 && is_first_whole) {
            EXPECT_EQ(bucket.begin, n_sharded);
          }
          is_first_whole = false;
          continue;
        }
        EXPECT_TRUE(is_first_whole) << "sharded ones come first";
        n_sharded += bucket.n_elements;
        EXPECT_EQ(n_sharded, bucket.end()) << "without gaps";
        EXPECT_EQ(bucket.n_elements % (kTile * static_cast<std::size_t>(n_shards)), 0u);
        EXPECT_EQ(bucket.shard(n_shards - 1).end(), bucket.end());
      }
      const std::size_t n_can_be = tensors[5].begin + tensors[5].n_elements;
      EXPECT_EQ(n_sharded > 0, n_shards > 1);
      if (n_shards > 1) {
        EXPECT_LT(n_can_be - n_sharded, kTile * static_cast<std::size_t>(n_shards));
      }
      EXPECT_EQ(end, end_of(tensors));
    }
}

/// Between two units, there is a bucket of one tile per rank that has elements of both.
TEST(Buckets, EndWhereUnitsEnd) {
  constexpr std::size_t kTile = kTileElements, kBorder = 2 * kTile;
  std::vector<GradientTensor> tensors = tensors_of({20 * kTile + 7, 5, 9 * kTile, kTile / 2, 100, 40 * kTile});
  const std::vector<int> units{0, 0, 1, 2, 2, 3};  // the third one is smaller than a bucket between units
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    tensors[i].can_be_sharded = true;
    tensors[i].unit = units[i];
  }
  const std::vector<Bucket> buckets = make_buckets(tensors, std::size_t{1} << 40, 2);
  ASSERT_GE(buckets.size(), 5u);
  std::size_t end = 0;
  for (const Bucket& bucket : buckets) {
    if (!bucket.is_sharded()) continue;
    EXPECT_EQ(bucket.begin, end) << "without gaps";
    end = bucket.end();
    std::set<int> has;
    for (std::size_t i = 0; i < tensors.size(); ++i)
      if (overlap({tensors[i].begin, tensors[i].n_elements}, {bucket.begin, bucket.n_elements}).n_elements > 0)
        has.insert(units[i]);
    if (bucket.n_elements != kBorder) {
      EXPECT_EQ(has.size(), 1u) << bucket.first_name;
    }
  }
  EXPECT_EQ(buckets[0].end(), 20 * kTile);
  EXPECT_EQ(buckets[1].n_elements, kBorder);
}

TEST(Buckets, RejectTensorsOutOfOrder) { EXPECT_THROW(make_buckets({{"a", 16, 16}, {"b", 0, 16}}, 100), Error); }

TEST(BucketSums, SumsEveryTensorInEveryStep) {
  const std::vector<GradientTensor> tensors = tensors_of({1000, 3, 70000, 64, 20000, 9});
  const auto communicator = make_communicator({}, *test_world, test_backend());
  const auto memory = communicator->allocate(end_of(tensors) * sizeof(float), "gradients");
  float* gradients = static_cast<float*>(memory->data());
  reference::ReferenceBackend backend;
  const auto stream = backend.make_stream();
  const std::vector<Bucket> buckets = make_buckets(tensors, 50000);
  EXPECT_EQ(buckets.size(), 8u);  // the third tensor is divided into five
  const int size = test_world->size();
  int step = 1;
  const auto write = [&](std::size_t t, Stream&) {
    std::fill_n(gradients + tensors[t].begin, tensors[t].n_elements,
                static_cast<float>((test_world->rank() + 1) * step) + static_cast<float>(t));
  };
  graph::StepList list = list_of_buckets(buckets, tensors.size(), gradients, write, *communicator, backend);
  for (; step <= 5; ++step) {
    list.queue(*stream);
    EXPECT_GE(list.exposed_seconds(), 0.0);
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      const float expected =
          static_cast<float>(step * size * (size + 1) / 2) + static_cast<float>(t) * static_cast<float>(size);
      for (std::size_t i = 0; i < tensors[t].n_elements; ++i) ASSERT_EQ(gradients[tensors[t].begin + i], expected);
    }
  }
  test_world->barrier();
}

// Eight buckets are delayed by 20 ms each, during a backward pass that takes 30 ms per tensor. All delays but the last
// are hidden. The bound is half of their sum, so that a loaded machine does not fail the test.
TEST(BucketSums, OverlapsCommunicationWithBackwardPass) {
  const std::vector<GradientTensor> tensors = tensors_of(std::vector<std::size_t>(8, 20000));
  Config::Comm config;
  config.sleep_ms = 20;
  const auto communicator = make_communicator(config, *test_world, test_backend());
  const auto memory = communicator->allocate(end_of(tensors) * sizeof(float), "gradients");
  reference::ReferenceBackend backend;
  const auto stream = backend.make_stream();
  const auto work = [](std::size_t, Stream&) { std::this_thread::sleep_for(std::chrono::milliseconds(30)); };
  graph::StepList list = list_of_buckets(make_buckets(tensors, 20000 * sizeof(float)), 8,
                                         static_cast<float*>(memory->data()), work, *communicator, backend);
  const auto begin = std::chrono::steady_clock::now();
  list.queue(*stream);
  const double exposed_seconds = list.exposed_seconds();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  EXPECT_LT(exposed_seconds, 0.08);
  EXPECT_GE(seconds, 8 * 0.03 + 0.02) << "the last bucket cannot be hidden";
  test_world->barrier();
}

}  // namespace lockstep::comm
