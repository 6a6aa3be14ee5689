// What holds for every communicator on any number of ranks; a test program includes this, says which values of
// comm.backend are tested on which backend, and starts its world.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "comm/sum.h"
#include "comm/sum_order.h"
#include "lockstep/error.h"
#include "test/comm/test_world.h"

namespace lockstep::comm {

/// Value of one rank at one index: of very different sizes, so that another order of summation gives other bits.
inline double value(int rank, std::size_t i) {
  const double x = static_cast<double>((i * 2654435761u + static_cast<std::size_t>(rank) * 40503u) % 10007) - 5003;
  return x * (rank % 2 == 0 ? 1.0 : 1e-3) + 1.0 / static_cast<double>(rank + 3);
}

template <typename T>
std::vector<T> expected_sum(int ranks, std::size_t n) {
  std::vector<T> out(n);
  for (std::size_t i = 0; i < n; ++i) {
    for (int r = 0; r < ranks; ++r) out[i] += static_cast<T>(value(r, i));
  }
  return out;
}

/// All ranks have these bytes.
inline bool same_on_all_ranks(const void* data, std::size_t size_bytes) {
  const std::vector<std::string> all =
      test_world->all_gather(std::string_view(static_cast<const char*>(data), size_bytes));
  return std::all_of(all.begin(), all.end(), [&](const std::string& other) { return other == all[0]; });
}

template <typename T>
void test_sums(Communicator& communicator, DType dtype) {
  const int rank = communicator.rank();
  const int size = communicator.size();
  // Odd sizes: less than a rank's share of a cache line, and around the lengths at which work and chunks are cut.
  for (const std::size_t n : {std::size_t{0}, std::size_t{1}, std::size_t{3}, std::size_t{17}, std::size_t{1000},
                              std::size_t{262143}, std::size_t{262145}, std::size_t{1000003}}) {
    const std::size_t offset = 5;
    const auto memory = communicator.allocate((n + 2 * offset) * sizeof(T), "a test");
    T* data = static_cast<T*>(memory->data());
    ASSERT_EQ(reinterpret_cast<std::uintptr_t>(data) % 4096, 0u);
    for (std::size_t i = 0; i < n + 2 * offset; ++i) ASSERT_EQ(data[i], T{0});
    std::fill(data, data + offset, T(rank));
    std::fill(data + offset + n, data + 2 * offset + n, T(rank));
    for (std::size_t i = 0; i < n; ++i) data[offset + i] = static_cast<T>(value(rank, i));
    HostEvent ready;
    const auto done = communicator.make_event();
    communicator.all_reduce_async({data + offset, n, dtype}, ready, *done, "sum of " + std::to_string(n));
    done->synchronize();

    const std::vector<T> expected = expected_sum<T>(size, n);
    double worst = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const double scale = 5003.0 * size;
      worst =
          std::max(worst, std::abs(static_cast<double>(data[offset + i]) - static_cast<double>(expected[i])) / scale);
    }
    // Orders differ by where the ranks lie: each of size-1 additions rounds by half a unit of the largest partial sum.
    EXPECT_LE(worst, size * static_cast<double>(std::numeric_limits<T>::epsilon())) << n << " elements";
    EXPECT_TRUE(same_on_all_ranks(data + offset, n * sizeof(T))) << n << " elements";
    for (std::size_t i = 0; i < offset; ++i) {
      ASSERT_EQ(data[i], T(rank)) << "written before the slice";
      ASSERT_EQ(data[offset + n + i], T(rank)) << "written behind the slice";
    }
    test_world->barrier();  // before anyone gives the memory back
  }
}

/// Several hundred slices of different sizes at once, over several rounds, in two allocations and both types.
inline void test_many_slices(Communicator& communicator) {
  constexpr std::size_t kSlices = 300;  // more than the queue holds
  constexpr int kRounds = 5;
  const auto length = [](std::size_t s) { return 1 + s * 37 % 4099; };
  std::size_t total = 0;
  for (std::size_t s = 0; s < kSlices; ++s) total += length(s);
  const auto singles = communicator.allocate(total * sizeof(float), "a test");
  const auto doubles = communicator.allocate(total * sizeof(double), "a test");
  float* f = static_cast<float*>(singles->data());
  double* d = static_cast<double*>(doubles->data());
  std::vector<std::unique_ptr<Event>> done;
  for (std::size_t s = 0; s < kSlices; ++s) done.push_back(communicator.make_event());
  HostEvent ready;
  const int rank = communicator.rank();
  const int size = communicator.size();
  for (int round = 1; round <= kRounds; ++round) {
    for (std::size_t i = 0; i < total; ++i) {
      f[i] = static_cast<float>((rank + 1) * round);
      d[i] = static_cast<double>((rank + 1) * round) + static_cast<double>(i);
    }
    std::size_t begin = 0;
    for (std::size_t s = 0; s < kSlices; ++s) {
      const Slice slice =
          s % 2 == 0 ? Slice{f + begin, length(s), DType::fp32} : Slice{d + begin, length(s), DType::fp64};
      communicator.all_reduce_async(slice, ready, *done[s], "slice " + std::to_string(s));
      begin += length(s);
    }
    begin = 0;
    const double sum = round * size * (size + 1) / 2.0;
    std::size_t wrong = 0;
    for (std::size_t s = 0; s < kSlices; ++s) {
      done[s]->synchronize();
      for (std::size_t i = begin; i < begin + length(s); ++i) {
        if (s % 2 == 0) {
          wrong += f[i] != static_cast<float>(sum);
        } else {
          wrong += d[i] != sum + static_cast<double>(i) * size;
        }
      }
      begin += length(s);
    }
    ASSERT_EQ(wrong, 0u) << "round " << round;
  }
  test_world->barrier();
}

/// On several nodes. What they send is rounded, and the sum of all: the same bits on every rank, within two roundings
/// to 8 or 11 bits.
inline void test_sums_in(DType narrow, Backend& backend) {
  Config::Comm config;
  config.gradients = name(narrow);
  const auto made = make_communicator(config, *test_world, backend);
  Communicator& communicator = *made;
  EXPECT_TRUE(communicator.describe().ends_with(", gradients sent as " + config.gradients)) << communicator.describe();
  const double rounding = narrow == DType::bf16 ? 0x1p-8 : 0x1p-11;
  constexpr std::size_t kElements = 700'001;  // several chunks of the host's, the last one short
  const auto memory = communicator.allocate(kElements * sizeof(float), "test");
  auto* const values = static_cast<float*>(memory->data());
  const auto of_rank = [](int rank, std::size_t i) {
    return static_cast<float>(i % 1013) / 1013.0f + 0.1f * static_cast<float>(rank);
  };
  for (const DType wire : {narrow, DType::fp32}) {
    for (std::size_t i = 0; i < kElements; ++i) values[i] = of_rank(test_world->rank(), i);
    const auto done = communicator.make_event();
    communicator.all_reduce_async({values, kElements, DType::fp32, wire}, at_once, *done, "sum");
    done->synchronize();
    double furthest = 0;
    for (std::size_t i = 0; i < kElements; ++i) {
      double sum = 0;
      for (int rank = 0; rank < test_world->size(); ++rank) sum += of_rank(rank, i);
      furthest = std::max(furthest, std::abs(values[i] / sum - 1));
    }
    EXPECT_LT(furthest, wire == narrow ? 2 * rounding : 1e-6);
    EXPECT_EQ(furthest > rounding / 4, wire == narrow) << "rounded or not";
    EXPECT_TRUE(same_on_all_ranks(values, kElements * sizeof(float)));
  }
}

struct Tested {
  std::string name;     // comm.backend
  Backend& (*where)();  // whose memory is summed
};

class AnyBackend : public ::testing::TestWithParam<Tested> {
 protected:
  std::unique_ptr<Communicator> communicator(double sleep_ms = 0, const SumOrder& order = {}) {
    Config::Comm config;
    config.backend = GetParam().name;
    config.sleep_ms = sleep_ms;
    return make_communicator(config, *test_world, GetParam().where(), order);
  }
};

TEST_P(AnyBackend, SumsFp32) { test_sums<float>(*communicator(), DType::fp32); }
TEST_P(AnyBackend, SumsFp64) { test_sums<double>(*communicator(), DType::fp64); }
TEST_P(AnyBackend, ManySlicesInFlight) { test_many_slices(*communicator()); }

TEST_P(AnyBackend, TheSameBitsInEveryRun) {
  const auto c = communicator();
  constexpr std::size_t kElements = 700001;
  const auto memory = c->allocate(kElements * sizeof(float), "a test");
  float* data = static_cast<float*>(memory->data());
  const auto done = c->make_event();
  std::vector<float> first;
  for (int round = 0; round < 5; ++round) {
    for (std::size_t i = 0; i < kElements; ++i) data[i] = static_cast<float>(value(c->rank(), i));
    c->all_reduce_async({data, kElements, DType::fp32}, at_once, *done, "again");
    done->synchronize();
    if (round == 0) first.assign(data, data + kElements);
    EXPECT_EQ(std::memcmp(first.data(), data, kElements * sizeof(float)), 0) << "round " << round;
  }
  test_world->barrier();
}

TEST_P(AnyBackend, SumsByTheTreeThatItWasGiven) {
  const int size = test_world->size();
  for (const SumOrder& order : {tree_order(size), sequential_order(size)}) {
    const auto c = communicator(0, order);
    constexpr std::size_t kElements = 300001;
    const auto memory = c->allocate(kElements * sizeof(float), "a test");
    float* data = static_cast<float*>(memory->data());
    for (std::size_t i = 0; i < kElements; ++i) data[i] = static_cast<float>(value(c->rank(), i));
    const auto done = c->make_event();
    c->all_reduce_async({data, kElements, DType::fp32}, at_once, *done, "by a tree");
    done->synchronize();

    std::vector<std::vector<float>> values(static_cast<std::size_t>(size), std::vector<float>(kElements));
    std::vector<const std::byte*> sources;
    for (int r = 0; r < size; ++r) {
      std::vector<float>& of_rank = values[static_cast<std::size_t>(r)];
      for (std::size_t i = 0; i < kElements; ++i) of_rank[i] = static_cast<float>(value(r, i));
      sources.push_back(reinterpret_cast<const std::byte*>(of_rank.data()));
    }
    std::vector<float> expected(kElements);
    sum(sources, std::vector{reinterpret_cast<std::byte*>(expected.data())}, kElements, DType::fp32, order);
    EXPECT_EQ(std::memcmp(expected.data(), data, kElements * sizeof(float)), 0);
    test_world->barrier();
  }
}

TEST_P(AnyBackend, StartsWhenReady) {
  const auto c = communicator();
  // Where sums are given to a stream, or there are none, an event of the host's is waited for in the caller.
  if (test_world->size() == 1 || c->make_event()->native() != nullptr) return;
  const auto memory = c->allocate(64, "a test");
  float* data = static_cast<float*>(memory->data());
  HostEvent ready;
  ready.begin();
  const auto done = c->make_event();
  c->all_reduce_async({data, 4, DType::fp32}, ready, *done, "held back");
  // World calls go on meanwhile, and nothing is summed.
  for (int i = 0; i < 3; ++i) test_world->barrier();
  EXPECT_FALSE(done->is_done());
  data[0] = 2;
  ready.complete();
  done->synchronize();
  EXPECT_EQ(data[0], 2.0f * static_cast<float>(c->size()));
  test_world->barrier();
}

TEST_P(AnyBackend, TwoCommunicatorsAtOnce) {
  const auto a = communicator();
  const auto b = communicator();
  const auto memory_a = a->allocate(4000, "a test");
  const auto memory_b = b->allocate(4000, "a test");
  float* x = static_cast<float*>(memory_a->data());
  float* y = static_cast<float*>(memory_b->data());
  const auto done_a = a->make_event();
  const auto done_b = b->make_event();
  for (int i = 0; i < 20; ++i) {
    std::fill(x, x + 1000, 1.0f);
    std::fill(y, y + 1000, 2.0f);
    // Not in one order on all ranks: communicators do not wait for each other.
    if ((test_world->rank() + i) % 2 == 0) a->all_reduce_async({x, 1000, DType::fp32}, at_once, *done_a, "a");
    b->all_reduce_async({y, 1000, DType::fp32}, at_once, *done_b, "b");
    if ((test_world->rank() + i) % 2 != 0) a->all_reduce_async({x, 1000, DType::fp32}, at_once, *done_a, "a");
    done_a->synchronize();
    done_b->synchronize();
    ASSERT_EQ(x[999], static_cast<float>(a->size()));
    ASSERT_EQ(y[999], 2.0f * static_cast<float>(a->size()));
  }
  test_world->barrier();
}

TEST_P(AnyBackend, SleepsButNotForSmallSlices) {
  const auto c = communicator(20);
  const auto memory = c->allocate(std::size_t{1} << 20, "a test");
  float* data = static_cast<float*>(memory->data());
  const auto done = c->make_event();
  std::fill(data, data + 20000, 1.0f);
  const auto begin = std::chrono::steady_clock::now();
  c->all_reduce_async({data, 20000, DType::fp32}, at_once, *done, "large");
  done->synchronize();
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(20));
  EXPECT_EQ(data[19999], static_cast<float>(c->size()));
  // The fastest of several: a loaded machine may hold back one of them, but not all.
  auto fastest = std::chrono::steady_clock::duration::max();
  for (int i = 0; i < 20; ++i) {
    const auto start = std::chrono::steady_clock::now();
    c->all_reduce_async({data, 1000, DType::fp32}, at_once, *done, "small");
    done->synchronize();
    fastest = std::min(fastest, std::chrono::steady_clock::now() - start);
  }
  EXPECT_LT(fastest, std::chrono::milliseconds(20));
  test_world->barrier();
}

TEST_P(AnyBackend, MemoryThatNobodyHas) {
  const auto c = communicator();
  EXPECT_THROW(c->allocate(std::size_t{1} << 46, "a test"), Error);
  // Nothing is left half-made: the next one works.
  const auto memory = c->allocate(1000, "a test");
  static_cast<char*>(memory->data())[999] = 1;
  test_world->barrier();
}

TEST_P(AnyBackend, RefusesForeignMemory) {
  if (test_world->size() == 1) return;  // sums of one look at nothing
  const auto c = communicator();
  std::vector<float> foreign(8);
  const auto done = c->make_event();
  EXPECT_THROW(c->all_reduce_async({foreign.data(), 8, DType::fp32}, at_once, *done, "foreign"), Error);
  const auto memory = c->allocate(32, "a test");
  EXPECT_THROW(c->all_reduce_async({memory->data(), 9, DType::fp32}, at_once, *done, "too long"), Error);
  EXPECT_THROW(c->all_reduce_async({memory->data(), 8, DType::int32}, at_once, *done, "integers"), Error);
  EXPECT_TRUE(done->is_done());
}

TEST(World, GathersTextsOfDifferentLengths) {
  const auto text = [](int rank) {
    return rank == 1 ? std::string()
                     : std::string(static_cast<std::size_t>(rank) * 1000 + 3, static_cast<char>('a' + rank));
  };
  for (int round = 0; round < 20; ++round) {
    const auto all = test_world->all_gather(text(test_world->rank()));
    ASSERT_EQ(all.size(), static_cast<std::size_t>(test_world->size()));
    for (int r = 0; r < test_world->size(); ++r) EXPECT_EQ(all[static_cast<std::size_t>(r)], text(r));
  }
  for (const std::string& nothing : test_world->all_gather("")) EXPECT_EQ(nothing, "");
}

TEST(World, BroadcastsFromEveryRoot) {
  for (int root = 0; root < test_world->size(); ++root) {
    std::vector<std::uint32_t> data(100000, test_world->rank() == root ? 7u + static_cast<std::uint32_t>(root) : 0u);
    test_world->broadcast(std::as_writable_bytes(std::span(data)), root);
    EXPECT_EQ(data.front(), 7u + static_cast<std::uint32_t>(root));
    EXPECT_EQ(data.back(), 7u + static_cast<std::uint32_t>(root));
  }
  EXPECT_THROW(test_world->broadcast({}, test_world->size()), Error);
}

TEST(World, AnyIsTrueOnAllRanks) {
  EXPECT_FALSE(test_world->any(false));
  for (int r = 0; r < test_world->size(); ++r) EXPECT_TRUE(test_world->any(test_world->rank() == r));
}

TEST(World, NoRankPassesABarrierBeforeAllCame) {
  const int late = test_world->size() - 1;
  std::int64_t came = 0;
  if (test_world->rank() == late) std::this_thread::sleep_for(std::chrono::milliseconds(150));
  came = std::chrono::system_clock::now().time_since_epoch().count();
  test_world->barrier();
  const std::int64_t left = std::chrono::system_clock::now().time_since_epoch().count();
  for (const std::string& of_rank : test_world->all_gather(std::to_string(came))) EXPECT_GE(left, std::stoll(of_rank));
}

}  // namespace lockstep::comm
