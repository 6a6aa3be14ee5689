// What happens when a rank is lost while GPUs sum by NCCL (fake_nccl.cpp): who is missing is named, NCCL is aborted,
// and the job ends.
// sanitizers: no
#include <gtest/gtest.h>
#include <sys/prctl.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "comm/world.h"
#include "lockstep/error.h"
#include "lockstep/log.h"
#include "test/comm/children.h"
#include "test/comm/fake_nccl.h"
#include "test/support/recording_backend.h"

namespace lockstep::comm {
namespace {

/// What NCCL was told, on all ranks.
std::string words_to_nccl(const std::string& log) {
  std::ifstream file(log);
  return {(std::istreambuf_iterator<char>(file)), {}};
}

class NcclLostRank : public ::testing::Test {
 protected:
  ~NcclLostRank() override { std::filesystem::remove(log_); }
  const std::string log_ =
      (std::filesystem::temp_directory_path() / ("nccl-log." + std::to_string(::getpid()))).string();
  const std::string environment_ = "FAKE_NCCL_LOG=" + log_ + " ";
};

TEST_F(NcclLostRank, ThatDoesNotComeIsNamedWithTheBucket) {
  const Outcome o = run_ranks_left_alone(2, environment_ + "WATCHDOG_SECONDS=2", "--nccl-lost-rank elsewhere");
  EXPECT_TRUE(says(o, "rank 0 on ")) << o.text;
  EXPECT_TRUE(says(o, "in 'bucket 2 of 9, 3.8 MiB'")) << o.text;
  EXPECT_TRUE(says(o, "for rank 1 on ")) << o.text;
  EXPECT_TRUE(says(o, "its last was 'bucket 1 of 9, 3.8 MiB', collective 2")) << o.text;
  EXPECT_TRUE(says(o, "status 1 of rank")) << o.text;
  EXPECT_LT(o.seconds, 30) << o.text;
  EXPECT_NE(words_to_nccl(log_).find("rank 0 abort"), std::string::npos) << words_to_nccl(log_);
}

// The host gives a recorded step's sums to the stream but once: the stream tells which it has come to.
TEST_F(NcclLostRank, ThatDoesNotComeToARecordedStepIsNamedWithTheBucket) {
  const Outcome o = run_ranks_left_alone(2, environment_ + "WATCHDOG_SECONDS=2", "--nccl-lost-rank recorded");
  EXPECT_TRUE(says(o, "in 'bucket 1 of 9, 3.8 MiB' (collective 17)")) << o.text;
  EXPECT_TRUE(says(o, "its last was 'bucket 3 of 9, 3.8 MiB', collective 16")) << o.text;
  EXPECT_TRUE(says(o, "status 1 of rank")) << o.text;
  EXPECT_LT(o.seconds, 30) << o.text;
}

TEST_F(NcclLostRank, ThatIsKilledIsNamedAtOnce) {
  const Outcome o = run_ranks_left_alone(3, environment_, "--nccl-lost-rank killed");
  EXPECT_TRUE(says(o, "rank 1 on ")) << o.text;
  EXPECT_TRUE(says(o, "has died")) << o.text;
  EXPECT_TRUE(says(o, "'bucket 3 of 9, 3.8 MiB'")) << o.text;
  EXPECT_LT(o.seconds, 20) << o.text;
}

TEST_F(NcclLostRank, ThatDoesNotComeToTheStartIsNamed) {
  const Outcome o = run_ranks_left_alone(2, environment_ + "WATCHDOG_SECONDS=2", "--nccl-lost-rank no-start");
  EXPECT_TRUE(says(o, "for rank 1 on ")) << o.text;
  EXPECT_LT(o.seconds, 30) << o.text;
}

TEST_F(NcclLostRank, ErrorsThatNcclFindsByItselfEndTheJob) {
  const Outcome o = run_ranks_left_alone(2, environment_ + "FAKE_NCCL_ERROR_AFTER=3", "--nccl-lost-rank all-sums");
  EXPECT_TRUE(says(o, "NCCL reported 'remote process exited or there was a network error' on rank")) << o.text;
  EXPECT_TRUE(says(o, "told by the fake NCCL")) << o.text;
  EXPECT_TRUE(says(o, "status 1 of rank")) << o.text;
  EXPECT_LT(o.seconds, 20) << o.text;
  EXPECT_NE(words_to_nccl(log_).find("abort"), std::string::npos) << words_to_nccl(log_);
}

// On the way out of an exception NCCL is aborted, not ended in good order, which would wait for the others.
TEST_F(NcclLostRank, ExceptionWithSumsInFlight) {
  const Outcome o = run_ranks_left_alone(2, environment_, "--nccl-lost-rank throws");
  EXPECT_TRUE(says(o, "caught internal: thrown in a step")) << o.text;
  EXPECT_TRUE(says(o, "status 1 of rank")) << o.text;
  EXPECT_LT(o.seconds, 20) << o.text;
  EXPECT_NE(words_to_nccl(log_).find("rank 1 abort"), std::string::npos) << words_to_nccl(log_);
  EXPECT_EQ(words_to_nccl(log_).find("finalize"), std::string::npos) << words_to_nccl(log_);
}

// ---- What the children do

struct Device {
  explicit Device(World& world)
      : cpu(make_backend({.device = "cpu", .threads = 1})),
        backend(*cpu, "GPU-" + std::to_string(world.rank()), test::GraphCapture::on),
        ready(backend.make_event()),
        stream(backend.make_stream()) {}
  std::unique_ptr<Backend> cpu;
  test::RecordingBackend backend;
  std::unique_ptr<Event> ready;
  std::unique_ptr<Stream> stream;
};

struct Sums {
  Sums(World& world, Device& of)
      : device(of),
        communicator(make_communicator({}, world, of.backend)),
        memory(communicator->allocate(4'000'000, "sums")),
        done(communicator->make_event()) {}
  void issue(int number) {
    communicator->all_reduce_async({memory->data(), 1'000'000, DType::fp32}, *device.ready, *done,
                                   "bucket " + std::to_string(number) + " of 9");
    device.stream->wait(*done);
  }
  void run(int first, int last) {
    for (int i = first; i <= last; ++i) {
      issue(i);
      device.stream->synchronize();
      std::this_thread::sleep_for(std::chrono::milliseconds(250));  // the watchdog looks every 100 ms
    }
  }
  Device& device;
  std::unique_ptr<Communicator> communicator;
  std::unique_ptr<Memory> memory;
  std::unique_ptr<Event> done;
};

void behave(const std::string& how, World& world) {
  const int last = world.size() - 1;
  Device device(world);
  if (how == "no-start") {
    if (world.rank() == last) std::this_thread::sleep_for(std::chrono::seconds(40));
    const Sums sums(world, device);
  } else if (how == "elsewhere") {
    Sums sums(world, device);
    sums.run(1, 1);
    if (world.rank() == last) std::this_thread::sleep_for(std::chrono::seconds(40));
    sums.run(2, 9);
  } else if (how == "recorded") {
    Sums sums(world, device);
    const auto step = device.backend.make_captured_graph();
    for (int i = 0; i < 6; ++i) {
      if (i == 5 && world.rank() == last) std::this_thread::sleep_for(std::chrono::seconds(40));
      if (step->begin(*device.stream)) {
        for (int bucket = 1; bucket <= 3; ++bucket) {
          device.ready->record(*device.stream);
          sums.issue(bucket);
        }
        step->end(*device.stream);
      }
      device.stream->synchronize();
      std::this_thread::sleep_for(std::chrono::milliseconds(250));
    }
  } else if (how == "killed") {
    Sums sums(world, device);
    sums.run(1, 2);
    if (world.rank() == 1) ::raise(SIGKILL);
    sums.run(3, 9);
  } else if (how == "all-sums") {
    Sums sums(world, device);
    sums.run(1, 9);
  } else if (how == "throws") {
    Sums sums(world, device);
    sums.issue(1);
    if (world.rank() == 1) fail(ErrorCode::internal, "thrown in a step");
    sums.run(2, 9);
  }
}

int child(int argc, char** argv) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const NcclHome fake;
  std::unique_ptr<World> world;
  try {
    const char* limit = std::getenv("WATCHDOG_SECONDS");
    world = start_world(&argc, &argv, limit != nullptr ? std::atof(limit) : 60);
    behave(argv[2], *world);
    return 0;
  } catch (const Error& e) {
    log::error("caught {}: {}", entry(e.code()).code, e.what());
    if (world) world->abort(kExitFailed);
    return kExitFailed;
  }
}

const test::Role role("nccl-lost-rank", child);

}  // namespace
}  // namespace lockstep::comm
