// ranks: 2 3
// timeout: 300
// also: Nccl/AnyCommunicator.*:World.*
// The NCCL communicator, with a fake NCCL (fake_nccl.cpp) and a stand-in for a device whose streams are queues: what it
// queues on which stream and in which order, and that its sums are right, also in tree order and with a narrow wire
// type.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "comm/device_exchange.h"
#include "test/comm/collective_tests.h"
#include "test/comm/fake_nccl.h"
#include "test/support/recording_backend.h"

namespace lockstep::comm {
namespace {

test::RecordingBackend& device() {
  static const NcclHome fake;
  static test::RecordingBackend backend(test_backend(), "GPU-" + std::to_string(test_world->rank()));
  return backend;
}

std::unique_ptr<Communicator> communicator(const SumOrder& order = {}, const Config::Comm& config = {}) {
  return make_communicator(config, *test_world, device(), order);
}

Backend& device_as_backend() { return device(); }

/// A device event that is done.
const Event& ready_event() {
  static const std::unique_ptr<Event> event = device().make_event();
  return *event;
}

}  // namespace

INSTANTIATE_TEST_SUITE_P(Nccl, AnyCommunicator,
                         ::testing::Values(CommunicatorCase{"nccl", device_as_backend},
                                           CommunicatorCase{"nccl", device_as_backend, /*nccl_blocking=*/true}));

TEST(Nccl, IsDefaultForDevices) {
  const auto c = communicator();
  EXPECT_EQ(c->describe(), "NCCL 2.28.9, " + std::to_string(test_world->size()) + " ranks on 1 node");
  EXPECT_EQ(c->rank(), test_world->rank());
  EXPECT_EQ(c->size(), test_world->size());
}

// NCCL says nothing if it cannot copy from device to device.
TEST(Nccl, WarnsIfEachRankSeesOnlyItsOwnDevice) {
  for (const int n_visible : {1, test_world->size()}) {
    device().n_visible = n_visible;
    testing::internal::CaptureStderr();
    (void)communicator();
    const std::string output = testing::internal::GetCapturedStderr();
    EXPECT_EQ(output.find("--gpu-bind=none") != std::string::npos, n_visible == 1 && test_world->rank() == 0) << output;
    test_world->barrier();
  }
  device().n_visible = 0;
}

TEST(Nccl, SumsFp32InTreeOrder) { test_sums<float>(*communicator(tree_order(test_world->size())), DType::fp32); }
TEST(Nccl, SumsFp64InTreeOrder) { test_sums<double>(*communicator(tree_order(test_world->size())), DType::fp64); }

// The result has the bits of comm::sum, even if a slice is longer than a chunk of the exchange.
TEST(Nccl, SumsInGivenTreeOrder) {
  const int size = test_world->size();
  for (const SumOrder& order : {tree_order(size), sequential_order(size)}) {
    const auto c = communicator(order);
    EXPECT_TRUE(c->describe().ends_with(", fixed tree order"));
    test_ordered_sum(*c, order, 4'300'001, ready_event());
  }
}

TEST(Nccl, ContinuesSumsInRounds) {
  if (test_world->size() > 1) test_rounds(*communicator(tree_order(test_world->size())), 2'300'001, ready_event());
}

// The sum waits for late work of the compute stream, and later work waits for the sum, without the host waiting for
// either.
TEST(Nccl, RunsBetweenReadyAndWaitingWork) {
  const auto c = communicator();
  constexpr std::size_t kElements = 100'003;
  const auto memory = c->allocate(kElements * sizeof(float), "test");
  float* data = static_cast<float*>(memory->data());
  const auto host = device().allocate_host(kElements * sizeof(float), "test");
  float* result = static_cast<float*>(host->data());
  std::vector<float> values(kElements, 1.0f);
  const auto stream = device().make_stream();
  const auto ready = device().make_event(), done = c->make_event();
  device().slow_down(10);
  device().recording().clear();
  device().copy(data, values.data(), kElements * sizeof(float), *stream);
  ready->record(*stream);
  c->all_reduce_async({data, kElements, DType::fp32}, *ready, *done, "late");
  EXPECT_FALSE(done->is_done());
  stream->wait(*done);
  device().copy(result, data, kElements * sizeof(float), *stream);
  EXPECT_FALSE(done->is_done()) << "the host waited";
  stream->synchronize();
  device().slow_down(0);
  EXPECT_EQ(std::count(result, result + kElements, static_cast<float>(c->size())), static_cast<long>(kElements));

  const int compute = test::RecordingBackend::number_of(*stream);
  std::vector<std::string> communication_calls;
  for (const test::Call& call : device().recording().calls())
    if (call.stream >= 0 && call.stream != compute) communication_calls.push_back(call.what);
  EXPECT_EQ(communication_calls, (std::vector<std::string>{"wait", "record_progress", "record_progress", "record"}));
  test_world->barrier();
}

TEST(Nccl, RejectsForeignMemoryAndTypes) {
  const auto c = communicator();
  std::vector<float> foreign(8);
  const auto done = c->make_event();
  EXPECT_THROW(c->all_reduce_async({foreign.data(), 8, DType::fp32}, ready_event(), *done, "foreign"), Error);
  const auto memory = c->allocate(32, "test");
  EXPECT_THROW(c->all_reduce_async({memory->data(), 9, DType::fp32}, ready_event(), *done, "too long"), Error);
  EXPECT_THROW(c->all_reduce_async({memory->data(), 8, DType::int32}, ready_event(), *done, "integers"), Error);
  EXPECT_TRUE(done->is_done());
}

TEST(Nccl, RejectsRanksOnOneDevice) {
  test::RecordingBackend shared(test_backend(), "GPU-shared");
  try {
    make_communicator({}, *test_world, shared);
    ADD_FAILURE() << "two ranks on one device were accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::config_conflict);
    const std::string text = error.what();
    EXPECT_NE(text.find("ranks 0 and 1 use the same GPU (GPU-shared on " + test_world->host()), std::string::npos)
        << text;
    EXPECT_NE(text.find("set comm.backend=staged"), std::string::npos) << text;
  }
}

/// The NCCL calls of this rank, other than all-reduces, while a communicator with 12345 bytes exists and `use` uses
/// them.
std::string calls_of_nccl(const Config::Comm& config = {}, const SumOrder& order = {},
                          const std::function<void(Communicator&, void* memory)>& use = {}) {
  const std::string log =
      (std::filesystem::temp_directory_path() / ("nccl-log." + std::to_string(::getpid()))).string();
  ::setenv("FAKE_NCCL_LOG", log.c_str(), 1);
  {
    const auto c = communicator(order, config);
    const auto memory = c->allocate(12345, "test");
    const auto* const bytes = static_cast<const unsigned char*>(memory->data());
    EXPECT_EQ(std::count(bytes, bytes + 12345, 0), 12345);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(bytes) % 4096, 0u);
    if (use) use(*c, memory->data());
    test_world->barrier();
  }
  ::unsetenv("FAKE_NCCL_LOG");
  std::ifstream file(log);
  std::string text, line;
  const std::string rank = "rank " + std::to_string(test_world->rank()) + " ";
  while (std::getline(file, line)) {
    EXPECT_TRUE(line.starts_with(rank)) << line;
    text += line.substr(rank.size()) + "\n";
  }
  std::filesystem::remove(log);
  return text;
}

// Memory is registered once and deregistered before it is freed. The communicator is finalized before it is destroyed.
TEST(Nccl, RegistersMemoryAndFinalizes) {
  EXPECT_EQ(calls_of_nccl(), "init\nregister 12345\nderegister\nfinalize, 0 registered\ndestroy\n");
}

// The buffers of sums in Lockstep's own order are registered, too.
TEST(Nccl, RegistersTheBuffersOfOrderedSums) {
  const int size = test_world->size();
  const std::size_t size_bytes = DeviceExchange::buffer_bytes(
      {.nodes = {std::vector<int>(static_cast<std::size_t>(size))}, .order = tree_order(size), .is_fixed = true});
  EXPECT_EQ(calls_of_nccl({}, tree_order(size)),
            "init\nregister " + std::to_string(size_bytes) +
                "\nregister 12345\nderegister\nderegister\nfinalize, 0 registered\ndestroy\n");
}

/// NCCL sends (n-1)/n of what a reduce-scatter or an all-gather is called for.
TEST(Nccl, ExchangesEqualShards) {
  const auto size = static_cast<std::size_t>(test_world->size());
  const std::string calls = calls_of_nccl({}, {}, [&](Communicator& communicator, void* memory) {
    HostEvent ready;
    for (const Collective collective : {Collective::reduce_scatter, Collective::all_gather}) {
      const auto done = communicator.make_event();
      communicator.exchange_async({collective, {memory, 500 * size, DType::fp32}}, ready, *done, "shards");
      done->synchronize();
    }
  });
  EXPECT_NE(calls.find("\nreduce-scatter 500\nall-gather 2000\n"), std::string::npos) << calls;
}

TEST(Nccl, BlocksIfConfigured) {
  Config::Comm config;
  config.nccl_blocking = true;
  EXPECT_TRUE(calls_of_nccl(config).starts_with("init, blocking\n"));
}

// Windows are used if NCCL can allocate memory and offers them, but only if this works on all ranks.
TEST(Nccl, UsesWindowsWhereNcclOffersThem) {
  ::setenv("FAKE_NCCL_WINDOWS", "any", 1);
  EXPECT_EQ(calls_of_nccl(), "init\nwindow 12345\nclose window of 1 allocations\nfinalize, 0 registered\ndestroy\n");
  test_sums<float>(*communicator(), DType::fp32);
  for (const char* const without : {"none", "one"}) {
    ::setenv("FAKE_NCCL_WINDOWS", without, 1);
    EXPECT_EQ(calls_of_nccl(), "init\nregister 12345\nderegister\nfinalize, 0 registered\ndestroy\n") << without;
  }
  ::unsetenv("FAKE_NCCL_WINDOWS");
}

// NCCL's log is kept as long as the communicator exists, and its warnings are repeated, even long after the start.
TEST(Nccl, RepeatsWarnings) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("nccl-run." + std::to_string(::getpid()));
  std::filesystem::create_directory(folder);
  const std::filesystem::path log = folder / ("nccl." + std::to_string(test_world->rank()) + ".log");
  ::setenv("FAKE_NCCL_WARNING", "NET/IB: a cable is loose", 1);
  testing::internal::CaptureStderr();
  {
    const auto c = make_communicator({}, *test_world, device(), {}, folder);
    EXPECT_TRUE(std::filesystem::exists(log));
    const auto memory = c->allocate(64, "test");
    const auto done = c->make_event();
    for (int i = 0; i < 2; ++i) {
      c->all_reduce_async({memory->data(), 16, DType::fp32}, ready_event(), *done, "sum");
      done->synchronize();
    }
    EXPECT_TRUE(std::filesystem::exists(log));
    test_world->barrier();
  }
  const std::string output = testing::internal::GetCapturedStderr();
  ::unsetenv("FAKE_NCCL_WARNING");
  const std::string warning = "NCCL warns: NET/IB: a cable is loose";
  const std::size_t first = output.find(warning), second = output.find(warning, first + 1);
  EXPECT_NE(second, std::string::npos) << output;
  EXPECT_EQ(output.find(warning, second + 1), std::string::npos) << output;
  EXPECT_FALSE(std::filesystem::exists(log)) << "it is removed after a run without errors";
  std::filesystem::remove_all(folder);
}

}  // namespace lockstep::comm
