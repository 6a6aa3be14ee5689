// The tests of AnyCommunicator and of World. The tests on several ranks run them too (`also:` in their headers).
#include "test/comm/collective_tests.h"

#include <chrono>
#include <thread>

namespace lockstep::comm {

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(AnyCommunicator);

TEST_P(AnyCommunicator, SumsFp32) { test_sums<float>(*communicator(), DType::fp32); }
TEST_P(AnyCommunicator, SumsFp64) { test_sums<double>(*communicator(), DType::fp64); }
TEST_P(AnyCommunicator, ScattersSumsFp32) { test_reduce_scatter(*communicator()); }
TEST_P(AnyCommunicator, GathersBf16) { test_all_gather<std::uint16_t>(*communicator(), DType::bf16); }
TEST_P(AnyCommunicator, GathersFp32) { test_all_gather<float>(*communicator(), DType::fp32); }
TEST_P(AnyCommunicator, SumsManySlicesInFlight) { test_many_slices(*communicator()); }

TEST_P(AnyCommunicator, LeavesOnlyOwnMemoryResident) { test_resident_memory(*communicator()); }

TEST_P(AnyCommunicator, GivesSameBitsInEveryRun) {
  const auto c = communicator();
  constexpr std::size_t kElements = 700001;
  const auto memory = c->allocate(kElements * sizeof(float), "test");
  float* data = static_cast<float*>(memory->data());
  const auto done = c->make_event();
  std::vector<float> first;
  for (int round = 0; round < 5; ++round) {
    for (std::size_t i = 0; i < kElements; ++i) data[i] = static_cast<float>(value(c->rank(), i));
    c->all_reduce_async({data, kElements, DType::fp32}, ready_now, *done, "repeated");
    done->synchronize();
    if (round == 0) first.assign(data, data + kElements);
    EXPECT_EQ(std::memcmp(first.data(), data, kElements * sizeof(float)), 0) << "round " << round;
  }
  test_world->barrier();
}

TEST_P(AnyCommunicator, SumsInGivenTreeOrder) {
  const int size = test_world->size();
  for (const SumOrder& order : {tree_order(size), sequential_order(size)}) {
    const auto c = communicator(0, order);
    test_ordered_sum(*c, order, 300001, ready_now);
  }
}

TEST_P(AnyCommunicator, ContinuesSumsInRounds) {
  SumOrder order = tree_order(test_world->size());
  order.has_rounds = true;
  if (order.size() == 1) return;  // there is nothing to exchange
  const auto c = communicator(0, order);
  for (const std::size_t length : {std::size_t{1}, std::size_t{1001}, std::size_t{400009}})
    test_rounds(*c, length, ready_now);
}

TEST_P(AnyCommunicator, StartsWhenReady) {
  const auto c = communicator();
  // If sums are queued on a stream, or if there is only one rank, the calling thread itself waits for a host event.
  if (test_world->size() == 1 || c->make_event()->native() != nullptr) return;
  const auto memory = c->allocate(64, "test");
  float* data = static_cast<float*>(memory->data());
  HostEvent ready;
  ready.begin();
  const auto done = c->make_event();
  c->all_reduce_async({data, 4, DType::fp32}, ready, *done, "delayed");
  // Calls of World proceed in the meantime, and nothing is summed.
  for (int i = 0; i < 3; ++i) test_world->barrier();
  EXPECT_FALSE(done->is_done());
  data[0] = 2;
  ready.complete();
  done->synchronize();
  EXPECT_EQ(data[0], 2.0f * static_cast<float>(c->size()));
  test_world->barrier();
}

TEST_P(AnyCommunicator, SupportsTwoCommunicators) {
  const auto a = communicator();
  const auto b = communicator();
  const auto memory_a = a->allocate(4000, "test");
  const auto memory_b = b->allocate(4000, "test");
  float* x = static_cast<float*>(memory_a->data());
  float* y = static_cast<float*>(memory_b->data());
  const auto done_a = a->make_event();
  const auto done_b = b->make_event();
  for (int i = 0; i < 20; ++i) {
    std::fill(x, x + 1000, 1.0f);
    std::fill(y, y + 1000, 2.0f);
    // The order differs between ranks: communicators do not wait for each other.
    if ((test_world->rank() + i) % 2 == 0) a->all_reduce_async({x, 1000, DType::fp32}, ready_now, *done_a, "a");
    b->all_reduce_async({y, 1000, DType::fp32}, ready_now, *done_b, "b");
    if ((test_world->rank() + i) % 2 != 0) a->all_reduce_async({x, 1000, DType::fp32}, ready_now, *done_a, "a");
    done_a->synchronize();
    done_b->synchronize();
    ASSERT_EQ(x[999], static_cast<float>(a->size()));
    ASSERT_EQ(y[999], 2.0f * static_cast<float>(a->size()));
  }
  test_world->barrier();
}

TEST_P(AnyCommunicator, DelaysOnlyLargeSlices) {
  constexpr int kDelay = 100;  // ms; in an emulator, even a small slice takes 30
  const auto c = communicator(kDelay);
  const auto memory = c->allocate(std::size_t{1} << 20, "test");
  float* data = static_cast<float*>(memory->data());
  const auto done = c->make_event();
  std::fill(data, data + 20000, 1.0f);
  const auto begin = std::chrono::steady_clock::now();
  c->all_reduce_async({data, 20000, DType::fp32}, ready_now, *done, "large");
  done->synchronize();
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(kDelay));
  EXPECT_EQ(data[19999], static_cast<float>(c->size()));
  // The fastest of several runs: a loaded machine may delay some of them, but not all.
  auto fastest = std::chrono::steady_clock::duration::max();
  for (int i = 0; i < 20; ++i) {
    const auto start = std::chrono::steady_clock::now();
    c->all_reduce_async({data, 1000, DType::fp32}, ready_now, *done, "small");
    done->synchronize();
    fastest = std::min(fastest, std::chrono::steady_clock::now() - start);
  }
  EXPECT_LT(fastest, std::chrono::milliseconds(kDelay));
  test_world->barrier();
}

TEST_P(AnyCommunicator, RejectsImpossibleAllocation) {
  const auto c = communicator();
  EXPECT_THROW(c->allocate(std::size_t{1} << 46, "test"), Error);
  // Nothing is left over from the failed allocation: the next one works.
  const auto memory = c->allocate(1000, "test");
  static_cast<char*>(memory->data())[999] = 1;
  test_world->barrier();
}

TEST_P(AnyCommunicator, RejectsForeignMemoryAndTypes) {
  if (test_world->size() == 1) return;  // the communicator of one rank checks nothing
  const auto c = communicator();
  std::vector<float> foreign(8);
  const auto done = c->make_event();
  EXPECT_THROW(c->all_reduce_async({foreign.data(), 8, DType::fp32}, ready_now, *done, "foreign"), Error);
  const auto memory = c->allocate(32, "test");
  EXPECT_THROW(c->all_reduce_async({memory->data(), 9, DType::fp32}, ready_now, *done, "too long"), Error);
  EXPECT_THROW(c->all_reduce_async({memory->data(), 8, DType::int32}, ready_now, *done, "integers"), Error);
  EXPECT_TRUE(done->is_done());
}

TEST(World, GathersStringsOfDifferentLengths) {
  const auto text = [](int rank) {
    return rank == 1 ? std::string()
                     : std::string(static_cast<std::size_t>(rank) * 1000 + 3, static_cast<char>('a' + rank));
  };
  for (int round = 0; round < 20; ++round) {
    const auto all = test_world->all_gather(text(test_world->rank()));
    ASSERT_EQ(all.size(), static_cast<std::size_t>(test_world->size()));
    for (int r = 0; r < test_world->size(); ++r) EXPECT_EQ(all[static_cast<std::size_t>(r)], text(r));
  }
  for (const std::string& text_of_rank : test_world->all_gather("")) EXPECT_EQ(text_of_rank, "");
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

TEST(World, BarrierWaitsForAllRanks) {
  const int late = test_world->size() - 1;
  if (test_world->rank() == late) std::this_thread::sleep_for(std::chrono::milliseconds(150));
  const std::int64_t reached = std::chrono::system_clock::now().time_since_epoch().count();
  test_world->barrier();
  const std::int64_t left = std::chrono::system_clock::now().time_since_epoch().count();
  for (const std::string& time : test_world->all_gather(std::to_string(reached))) EXPECT_GE(left, std::stoll(time));
}

}  // namespace lockstep::comm
