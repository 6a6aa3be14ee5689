// The tests that every communicator must pass on any number of ranks. A test program includes this file, instantiates
// AnyCommunicator with the values of comm.backend and the backends to test, and starts its world.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/sum.h"
#include "lockstep/error.h"
#include "test/comm/test_world.h"

namespace lockstep::comm {

/// The value of one rank at one index. The magnitudes differ widely, so that another order of summation gives different
/// bits.
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

/// True if these bytes are the same on all ranks.
inline bool same_on_all_ranks(const void* data, std::size_t size_bytes) {
  const std::vector<std::string> all =
      test_world->all_gather(std::string_view(static_cast<const char*>(data), size_bytes));
  return std::all_of(all.begin(), all.end(), [&](const std::string& other) { return other == all[0]; });
}

/// An all-reduce of fp32 has the bits of comm::sum in this order. Collective over test_world.
inline void test_ordered_sum(Communicator& communicator, const SumOrder& order, std::size_t n, const Event& ready) {
  const auto memory = communicator.allocate(n * sizeof(float), "test");
  float* data = static_cast<float*>(memory->data());
  for (std::size_t i = 0; i < n; ++i) data[i] = static_cast<float>(value(communicator.rank(), i));
  const auto done = communicator.make_event();
  communicator.all_reduce_async({data, n, DType::fp32}, ready, *done, "in tree order");
  done->synchronize();

  const auto size = static_cast<std::size_t>(communicator.size());
  std::vector<std::vector<float>> values(size, std::vector<float>(n));
  std::vector<const std::byte*> sources;
  for (std::size_t r = 0; r < size; ++r) {
    for (std::size_t i = 0; i < n; ++i) values[r][i] = static_cast<float>(value(static_cast<int>(r), i));
    sources.push_back(reinterpret_cast<const std::byte*>(values[r].data()));
  }
  std::vector<float> expected(n);
  sum(sources, std::vector{reinterpret_cast<std::byte*>(expected.data())}, n, DType::fp32, order);
  EXPECT_EQ(std::memcmp(expected.data(), data, n * sizeof(float)), 0);
  test_world->barrier();
}

template <typename T>
void test_sums(Communicator& communicator, DType dtype) {
  const int rank = communicator.rank();
  const int size = communicator.size();
  // Odd sizes: less than one cache line per rank, and sizes near the lengths of blocks and chunks.
  for (const std::size_t n : {std::size_t{0}, std::size_t{1}, std::size_t{3}, std::size_t{17}, std::size_t{1000},
                              std::size_t{262143}, std::size_t{262145}, std::size_t{1000003}}) {
    const std::size_t offset = 5;
    const auto memory = communicator.allocate((n + 2 * offset) * sizeof(T), "test");
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
    // The order of the sum depends on the nodes of the ranks. Each of the size-1 additions rounds by at most half a
    // unit of the largest sum.
    EXPECT_LE(worst, size * static_cast<double>(std::numeric_limits<T>::epsilon())) << n << " elements";
    EXPECT_TRUE(same_on_all_ranks(data + offset, n * sizeof(T))) << n << " elements";
    for (std::size_t i = 0; i < offset; ++i) {
      ASSERT_EQ(data[i], T(rank)) << "written before the slice";
      ASSERT_EQ(data[offset + n + i], T(rank)) << "written after the slice";
    }
    test_world->barrier();  // before any rank frees the memory
  }
}

/// A rank's shard has the same bits as after an all-reduce. `wire`: see Slice::wire.
inline void test_reduce_scatter(Communicator& communicator, DType wire = DType::fp32) {
  for (const std::size_t length : {std::size_t{1}, std::size_t{1001}, std::size_t{131075}, std::size_t{500009}}) {
    const std::size_t n = length * static_cast<std::size_t>(communicator.size());
    const ElementRange mine = equal_shard(n, communicator.size(), communicator.rank());
    const auto memory = communicator.allocate(n * sizeof(float), "test"),
               reference = communicator.allocate(n * sizeof(float), "reference");
    auto* const data = static_cast<float*>(memory->data());
    auto* const sums = static_cast<float*>(reference->data());
    for (std::size_t i = 0; i < n; ++i) data[i] = sums[i] = static_cast<float>(value(communicator.rank(), i));
    HostEvent ready;
    const auto done = communicator.make_event(), all_done = communicator.make_event();
    communicator.exchange_async({Collective::reduce_scatter, {data, n, DType::fp32, wire}}, ready, *done, "shards");
    communicator.all_reduce_async({sums, n, DType::fp32, wire}, ready, *all_done, "whole");
    done->synchronize();
    all_done->synchronize();
    EXPECT_EQ(std::memcmp(data + mine.begin, sums + mine.begin, length * sizeof(float)), 0) << length << " elements";
    test_world->barrier();
  }
}

/// Sums over more sources than ranks, in rounds, have the bits of comm::sum over all of them.
inline void test_rounds(Communicator& communicator, std::size_t length, const Event& ready) {
  const int size = communicator.size(), rank = communicator.rank();
  const std::size_t n = length * static_cast<std::size_t>(size);
  const auto memory = communicator.allocate(n * sizeof(float), "test"),
             open = communicator.allocate(8 * n * sizeof(float), "open sums");
  auto* const data = static_cast<float*>(memory->data());
  for (const int n_rounds : {1, 3, 4})
    for (const Collective collective : {Collective::reduce_scatter, Collective::all_reduce}) {
      const SumOrder order = tree_order(n_rounds * size);
      const auto done = communicator.make_event();
      SumRound round{.open = open->data(), .stride = collective == Collective::all_reduce ? n : length};
      const std::span kept(static_cast<float*>(open->data()), 8 * n);
      std::ranges::fill(kept, -1.0f);
      int most = 0;  // entries that a round leaves
      for (int i = 0; i < n_rounds; ++i) {
        round.merges =
            std::span(order.merges).subspan(static_cast<std::size_t>(i * size), static_cast<std::size_t>(size));
        for (std::size_t at = 0; at < n; ++at) data[at] = static_cast<float>(value(i * size + rank, at));
        test_world->barrier();
        communicator.exchange_async({collective, {data, n}, round}, ready, *done, "round");
        done->synchronize();
        round.n_before = round.n_after();
        most = std::max(most, round.n_before);
      }
      ASSERT_EQ(round.n_before, 1);
      EXPECT_EQ(std::ranges::count(kept.subspan(static_cast<std::size_t>(most) * round.stride), -1.0f),
                std::ssize(kept) - static_cast<std::ptrdiff_t>(static_cast<std::size_t>(most) * round.stride))
          << "other memory was written in " << n_rounds << " rounds";
      std::vector<std::vector<float>> values;
      std::vector<const std::byte*> sources;
      for (int source = 0; source < order.size(); ++source) {
        std::vector<float>& of_source = values.emplace_back(n);
        for (std::size_t at = 0; at < n; ++at) of_source[at] = static_cast<float>(value(source, at));
      }
      for (const std::vector<float>& of_source : values)
        sources.push_back(reinterpret_cast<const std::byte*>(of_source.data()));
      std::vector<float> expected(n);
      sum(sources, std::vector{reinterpret_cast<std::byte*>(expected.data())}, n, DType::fp32, order);
      const ElementRange mine = equal_shard(n, size, rank);
      if (collective == Collective::all_reduce)
        EXPECT_EQ(std::memcmp(expected.data(), data, n * sizeof(float)), 0) << n_rounds << " rounds";
      else
        EXPECT_EQ(std::memcmp(expected.data() + mine.begin, open->data(), length * sizeof(float)), 0)
            << n_rounds << " rounds";
      test_world->barrier();
    }
}

/// Every rank gets the shards of all ranks, bit for bit, and nothing outside the slice is written.
template <typename T>
void test_all_gather(Communicator& communicator, DType dtype) {
  const auto value_of = [](int rank, std::size_t i) {
    return static_cast<T>((i * 7 + static_cast<std::size_t>(rank) * 1001) % 30011 + 1);
  };
  for (const std::size_t length : {std::size_t{0}, std::size_t{1}, std::size_t{1001}, std::size_t{750007}}) {
    const std::size_t n = length * static_cast<std::size_t>(communicator.size());
    const auto memory = communicator.allocate((n + 2) * sizeof(T), "test");
    auto* const all = static_cast<T*>(memory->data());
    HostEvent ready;
    const auto done = communicator.make_event();
    for (int round = 0; round < 2; ++round) {
      for (std::size_t i = 0; i < n + 2; ++i) all[i] = value_of(communicator.rank() + round, i);
      communicator.exchange_async({Collective::all_gather, {all + 1, n, dtype}}, ready, *done, "shards");
      done->synchronize();
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < n; ++i) wrong += all[i + 1] != value_of(static_cast<int>(i / length) + round, i + 1);
      EXPECT_EQ(wrong, 0u) << length << " elements, round " << round;
      EXPECT_EQ(all[0], value_of(communicator.rank() + round, 0));
      EXPECT_EQ(all[n + 1], value_of(communicator.rank() + round, n + 1));
      test_world->barrier();
    }
  }
}

/// Hundreds of slices of different sizes in flight, over several rounds, in two allocations and both types.
inline void test_many_slices(Communicator& communicator) {
  constexpr std::size_t kSlices = 300;  // more than the queue holds
  constexpr int kRounds = 5;
  const auto length = [](std::size_t s) { return 1 + s * 37 % 4099; };
  std::size_t total = 0;
  for (std::size_t s = 0; s < kSlices; ++s) total += length(s);
  const auto singles = communicator.allocate(total * sizeof(float), "test");
  const auto doubles = communicator.allocate(total * sizeof(double), "test");
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

/// The resident bytes of the mapping at `data` if it maps a file, otherwise 0.
inline std::size_t resident_bytes_of_file(const void* data) {
  std::ifstream smaps("/proc/self/smaps");
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  bool is_in_mapping = false;
  for (std::string line; std::getline(smaps, line);) {
    unsigned long begin = 0, end = 0, kib = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2)
      is_in_mapping = begin <= address && address < end && line.find('/') != std::string::npos;
    else if (is_in_mapping && std::sscanf(line.c_str(), "Rss: %lu", &kib) == 1)
      return kib * 1024;
  }
  return 0;
}

/// The ranks of a node map each other's memory, but after an exchange only a rank's own memory is resident.
inline void test_resident_memory(Communicator& communicator) {
  // The sizes of the ranks' regions are not multiples of large pages.
  const auto size = static_cast<std::size_t>(communicator.size());
  const std::size_t n = ((std::size_t{5} << 20) + 1030) / size * size, n_bytes = n * sizeof(float);
  const auto memory = communicator.allocate(n_bytes, "test");
  auto* const data = static_cast<float*>(memory->data());
  std::fill(data, data + n, 1.0f);
  const bool is_shared = resident_bytes_of_file(data) > 0;  // not if this rank is alone on its node
  const auto done = communicator.make_event();
  for (const Collective collective : {Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather}) {
    communicator.exchange_async({collective, {data, n, DType::fp32}}, ready_now, *done, "test");
    done->synchronize();
    if (!is_shared) continue;
    const double resident = static_cast<double>(resident_bytes_of_file(data));
    EXPECT_GE(resident, 1.0 * static_cast<double>(n_bytes)) << "collective " << static_cast<int>(collective);
    EXPECT_LE(resident, 1.05 * static_cast<double>(n_bytes)) << "collective " << static_cast<int>(collective);
  }
  test_world->barrier();
}

/// For several nodes. What they send is rounded, and so is the total. All ranks get the same bits, and the error is at
/// most two roundings to 8 or 11 bits.
inline void test_wire_type(DType narrow, Backend& backend) {
  Config::Comm config;
  config.gradients = name(narrow);
  const auto made = make_communicator(config, *test_world, backend);
  Communicator& communicator = *made;
  EXPECT_TRUE(communicator.describe().ends_with(", gradients sent as " + config.gradients)) << communicator.describe();
  const double rounding = narrow == DType::bf16 ? 0x1p-8 : 0x1p-11;
  constexpr std::size_t kElements = 700'001;  // several chunks of the host communicator; the last one is shorter
  const auto memory = communicator.allocate(kElements * sizeof(float), "test");
  auto* const values = static_cast<float*>(memory->data());
  const auto value_of = [](int rank, std::size_t i) {
    return static_cast<float>(i % 1013) / 1013.0f + 0.1f * static_cast<float>(rank);
  };
  for (const DType wire : {narrow, DType::fp32}) {
    for (std::size_t i = 0; i < kElements; ++i) values[i] = value_of(test_world->rank(), i);
    const auto done = communicator.make_event();
    communicator.all_reduce_async({values, kElements, DType::fp32, wire}, ready_now, *done, "sum");
    done->synchronize();
    double max_error = 0;
    for (std::size_t i = 0; i < kElements; ++i) {
      double sum = 0;
      for (int rank = 0; rank < test_world->size(); ++rank) sum += value_of(rank, i);
      max_error = std::max(max_error, std::abs(values[i] / sum - 1));
    }
    EXPECT_LT(max_error, wire == narrow ? 2 * rounding : 1e-6);
    EXPECT_EQ(max_error > rounding / 4, wire == narrow) << "rounded if and only if a narrow wire type is used";
    EXPECT_TRUE(same_on_all_ranks(values, kElements * sizeof(float)));
  }
}

struct CommunicatorCase {
  std::string name;       // comm.backend
  Backend& (*backend)();  // whose memory is summed
  bool nccl_blocking = false;
};

class AnyCommunicator : public ::testing::TestWithParam<CommunicatorCase> {
 protected:
  std::unique_ptr<Communicator> communicator(double sleep_ms = 0, const SumOrder& order = {}) {
    Config::Comm config;
    config.backend = GetParam().name;
    config.sleep_ms = sleep_ms;
    config.nccl_blocking = GetParam().nccl_blocking;
    return make_communicator(config, *test_world, GetParam().backend(), order);
  }
};

}  // namespace lockstep::comm
