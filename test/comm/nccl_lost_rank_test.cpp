// A rank is lost while GPUs sum with NCCL (fake_nccl.cpp). The missing rank is reported, NCCL is aborted, and the job
// ends.
// sanitizers: no
// cores: 0
#include <gtest/gtest.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cmath>
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

/// The calls of NCCL that the ranks made.
std::string nccl_calls(const std::string& log) {
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

TEST_F(NcclLostRank, ReportsMissingRankWithBucket) {
  const Outcome o = run_ranks_with_recovery(2, environment_ + "WATCHDOG_SECONDS=2", "--nccl-lost-rank missing");
  EXPECT_TRUE(contains(o, "rank 0 on ")) << o.output;
  EXPECT_TRUE(contains(o, "in 'bucket 2 of 9, 3.8 MiB'")) << o.output;
  EXPECT_TRUE(contains(o, "for rank 1 on ")) << o.output;
  EXPECT_TRUE(contains(o, "its last was 'bucket 1 of 9, 3.8 MiB', collective 2")) << o.output;
  EXPECT_TRUE(contains(o, "status 1 of rank")) << o.output;
  EXPECT_LT(o.seconds, 30) << o.output;
  EXPECT_NE(nccl_calls(log_).find("rank 0 abort"), std::string::npos) << nccl_calls(log_);
}

// The host queues the all-reduces of a captured step only once. The stream reports which one it has reached.
TEST_F(NcclLostRank, ReportsMissingRankWithBucketOfCapturedStep) {
  const Outcome o = run_ranks_with_recovery(2, environment_ + "WATCHDOG_SECONDS=2", "--nccl-lost-rank captured");
  EXPECT_TRUE(contains(o, "in 'bucket 1 of 9, 3.8 MiB' (collective 17)")) << o.output;
  EXPECT_TRUE(contains(o, "its last was 'bucket 3 of 9, 3.8 MiB', collective 16")) << o.output;
  EXPECT_TRUE(contains(o, "status 1 of rank")) << o.output;
  EXPECT_LT(o.seconds, 30) << o.output;
}

TEST_F(NcclLostRank, ReportsKilledRankImmediately) {
  const Outcome o = run_ranks_with_recovery(3, environment_, "--nccl-lost-rank killed");
  EXPECT_TRUE(contains(o, "rank 1 on ")) << o.output;
  EXPECT_TRUE(contains(o, "has died: its process ended")) << o.output;
  EXPECT_TRUE(contains(o, "'bucket 3 of 9, 3.8 MiB'")) << o.output;
  EXPECT_LT(o.seconds, 20) << o.output;
}

TEST_F(NcclLostRank, ReportsRankMissingFromStart) {
  const Outcome o =
      run_ranks_with_recovery(2, environment_ + "WATCHDOG_SECONDS=2", "--nccl-lost-rank missing-at-start");
  EXPECT_TRUE(contains(o, "for rank 1 on ")) << o.output;
  EXPECT_LT(o.seconds, 30) << o.output;
}

TEST_F(NcclLostRank, ReportsRankMissingFromStartIfNcclBlocks) {
  const Outcome o = run_ranks_with_recovery(2, environment_ + "WATCHDOG_SECONDS=2 NCCL_BLOCKS=1",
                                            "--nccl-lost-rank missing-at-start");
  EXPECT_TRUE(contains(o, "for rank 1 on ")) << o.output;
  EXPECT_LT(o.seconds, 9) << "the limit for a rank that was told: " << o.output;
}

TEST_F(NcclLostRank, EndsJobOnAsynchronousNcclError) {
  const std::filesystem::path folder = log_ + ".run";
  std::filesystem::create_directory(folder);
  const Outcome o = run_ranks_with_recovery(
      2, environment_ + "FAKE_NCCL_ERROR_AFTER=3 FAKE_NCCL_WARNING='a cable is loose' LOG_FOLDER=" + folder.string(),
      "--nccl-lost-rank all-buckets");
  EXPECT_TRUE(contains(o, "NCCL warns: a cable is loose")) << o.output;
  EXPECT_TRUE(contains(o, "; NCCL's log is " + (folder / "nccl.").string())) << o.output;
  EXPECT_TRUE(std::filesystem::exists(folder / "nccl.0.log")) << "it is kept after an error";
  std::filesystem::remove_all(folder);
  EXPECT_TRUE(contains(o, "NCCL reported 'remote process exited or there was a network error' on rank")) << o.output;
  EXPECT_TRUE(contains(o, "reported by the fake NCCL")) << o.output;
  EXPECT_TRUE(contains(o, "status 1 of rank")) << o.output;
  EXPECT_LT(o.seconds, 20) << o.output;
  EXPECT_NE(nccl_calls(log_).find("abort"), std::string::npos) << nccl_calls(log_);
}

// The host launches captured steps without calling the communicator, which therefore reports no collective in progress.
// Only check() can tell the host that the sums of the next steps are wrong. The step that follows the error is not
// used.
TEST_F(NcclLostRank, EndsJobOnErrorBetweenCapturedSteps) {
  const Outcome o =
      run_ranks_with_recovery(2, environment_ + "FAKE_NCCL_ERROR_BETWEEN=15", "--nccl-lost-rank captured-error");
  EXPECT_TRUE(contains(o, "NCCL reported 'remote process exited or there was a network error' on rank")) << o.output;
  EXPECT_TRUE(contains(o, "the cause of the loss is known")) << o.output;
  EXPECT_TRUE(contains(o, "step 3 has the right sums")) << o.output;
  EXPECT_FALSE(contains(o, "wrong sums")) << o.output;
  EXPECT_TRUE(contains(o, "status 1 of rank")) << o.output;
  EXPECT_LT(o.seconds, 9) << "the limit for a rank that was told: " << o.output;
  EXPECT_NE(nccl_calls(log_).find("abort"), std::string::npos) << nccl_calls(log_);
}

// A rank that never asks for errors is ended by the communication thread, which prints the cause.
TEST_F(NcclLostRank, EndsJobThatDoesNotAskForErrors) {
  const Outcome o =
      run_ranks_with_recovery(2, environment_ + "FAKE_NCCL_ERROR_BETWEEN=15", "--nccl-lost-rank captured-busy");
  EXPECT_TRUE(contains(o, "NCCL reported 'remote process exited or there was a network error' on rank")) << o.output;
  EXPECT_TRUE(contains(o, "status 1 of rank")) << o.output;
  EXPECT_LT(o.seconds, 30) << o.output;
}

// When an exception ends the job, NCCL is aborted. Finalizing it would wait for the other ranks.
TEST_F(NcclLostRank, AbortsNcclOnExceptionWithAllReducesInFlight) {
  const Outcome o = run_ranks_with_recovery(2, environment_, "--nccl-lost-rank throws");
  EXPECT_TRUE(contains(o, "caught internal: thrown in a step")) << o.output;
  EXPECT_TRUE(contains(o, "status 1 of rank")) << o.output;
  EXPECT_LT(o.seconds, 20) << o.output;
  EXPECT_NE(nccl_calls(log_).find("rank 1 abort"), std::string::npos) << nccl_calls(log_);
  EXPECT_EQ(nccl_calls(log_).find("finalize"), std::string::npos) << nccl_calls(log_);
}

// comm.backend=nccl calls NCCL even for one rank, and reports its errors.
TEST_F(NcclLostRank, OneRankCallsNccl) {
  const Outcome good = run_command(environment_ + self() + " --nccl-lost-rank alone");
  EXPECT_EQ(good.exit_status, 0) << good.output;
  EXPECT_TRUE(contains(good, ", 1 rank on 1 node")) << good.output;
  EXPECT_EQ(nccl_calls(log_),
            "rank 0 init\nrank 0 register 4000000\nrank 0 deregister\nrank 0 finalize, 0 registered\nrank 0 destroy\n");
  const Outcome bad = run_command(environment_ + "FAKE_NCCL_ERROR_AFTER=3 " + self() + " --nccl-lost-rank alone");
  EXPECT_EQ(bad.exit_status, 1) << bad.output;
  EXPECT_TRUE(contains(bad, "NCCL reported 'remote process exited or there was a network error' on rank 0"))
      << bad.output;
}

// From NCCL 2.30 on, ranks may share a device.
TEST_F(NcclLostRank, RanksShareADeviceIfNcclLetsThem) {
  const std::string role = self() + " --nccl-lost-rank shared-device", enabled = "NCCL_MULTI_RANK_GPU_ENABLE=1 ";
  const Outcome o = run_ranks(2, environment_ + enabled + "FAKE_NCCL_VERSION=23007", role);
  EXPECT_EQ(o.exit_status, 0) << o.output;
  EXPECT_TRUE(contains(o, "the sum is right")) << o.output;
  EXPECT_NE(run_ranks(2, environment_ + enabled + "FAKE_NCCL_VERSION=22907", role).exit_status, 0);
  EXPECT_NE(run_ranks(2, environment_ + "FAKE_NCCL_VERSION=23007", role).exit_status, 0);
}

// NCCL does not allow some ranks to replay a collective that others call. The fake one ends the process then.
TEST_F(NcclLostRank, FakeNcclRejectsWhatOnlySomeRanksCapture) {
  const Outcome o = run_ranks(2, environment_, self() + " --nccl-lost-rank captured-by-one");
  EXPECT_TRUE(contains(o, "fake NCCL: rank 0 has captured a collective that rank 1 calls")) << o.output;
  EXPECT_NE(o.exit_status, 0) << o.output;
}

// ---- The behaviour of the children

struct Device {
  Device(World& world, bool is_shared)
      : cpu(make_backend({.device = "cpu", .threads = 1})),
        backend(*cpu, is_shared ? "GPU" : "GPU-" + std::to_string(world.rank()), test::GraphCapture::on),
        ready(backend.make_event()),
        stream(backend.make_stream()) {}
  std::unique_ptr<Backend> cpu;
  test::RecordingBackend backend;
  std::unique_ptr<Event> ready;
  std::unique_ptr<Stream> stream;
};

std::unique_ptr<Communicator> communicator_for(World& world, Backend& backend) {
  Config::Comm config;
  config.backend = "nccl";
  config.nccl_blocking = std::getenv("NCCL_BLOCKS") != nullptr;
  const char* const folder = std::getenv("LOG_FOLDER");
  return make_communicator(config, world, backend, {}, folder != nullptr ? folder : "");
}

struct AllReduces {
  AllReduces(World& world, Device& of)
      : device(of),
        communicator(communicator_for(world, of.backend)),
        memory(communicator->allocate(4'000'000, "all-reduces")),
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
      std::this_thread::sleep_for(std::chrono::milliseconds(250));  // the watchdog checks every 100 ms
    }
  }
  Device& device;
  std::unique_ptr<Communicator> communicator;
  std::unique_ptr<Memory> memory;
  std::unique_ptr<Event> done;
};

/// Steps of three all-reduces, which are captured in the third step. Every rank adds 1, so the sums are known.
void run_captured_steps(World& world, Device& device, bool checks) {
  AllReduces all_reduces(world, device);
  const auto step = device.backend.make_captured_graph();
  auto* const values = static_cast<float*>(all_reduces.memory->data());
  for (int i = 0; i < 100; ++i) {
    if (checks) all_reduces.communicator->check();
    std::fill_n(values, 1'000'000, 1.0f);
    step->run(*device.stream, [&] {
      for (int bucket = 1; bucket <= 3; ++bucket) {
        device.ready->record(*device.stream);
        all_reduces.issue(bucket);
      }
    });
    device.stream->synchronize();
    if (checks) all_reduces.communicator->check();
    const bool is_right = values[0] == std::pow(static_cast<float>(world.size()), 3.0f);
    log::info("step {} has the {} sums", i, is_right ? "right" : "wrong");
    std::this_thread::sleep_for(std::chrono::milliseconds(250));  // the communication thread asks NCCL every 100 ms
  }
}

void behave(const std::string& behavior, World& world) {
  const int last = world.size() - 1;
  Device device(world, behavior == "shared-device");
  if (behavior == "missing-at-start") {
    if (world.rank() == last) std::this_thread::sleep_for(std::chrono::seconds(40));
    const AllReduces all_reduces(world, device);
  } else if (behavior == "missing") {
    AllReduces all_reduces(world, device);
    all_reduces.run(1, 1);
    if (world.rank() == last) std::this_thread::sleep_for(std::chrono::seconds(40));
    all_reduces.run(2, 9);
  } else if (behavior == "captured") {
    AllReduces all_reduces(world, device);
    const auto step = device.backend.make_captured_graph();
    for (int i = 0; i < 6; ++i) {
      if (i == 5 && world.rank() == last) std::this_thread::sleep_for(std::chrono::seconds(40));
      step->run(*device.stream, [&] {
        for (int bucket = 1; bucket <= 3; ++bucket) {
          device.ready->record(*device.stream);
          all_reduces.issue(bucket);
        }
      });
      device.stream->synchronize();
      std::this_thread::sleep_for(std::chrono::milliseconds(250));
    }
  } else if (behavior == "alone") {
    AllReduces all_reduces(world, device);
    log::info("{}", all_reduces.communicator->describe());
    all_reduces.run(1, 9);
  } else if (behavior == "shared-device") {
    AllReduces all_reduces(world, device);
    auto* const values = static_cast<float*>(all_reduces.memory->data());
    std::fill_n(values, 1'000'000, 1.0f);
    all_reduces.run(1, 1);
    if (values[999'999] == 2) log::info("the sum is right");
  } else if (behavior == "captured-by-one") {
    AllReduces all_reduces(world, device);
    const auto step = world.rank() == 0 ? device.backend.make_captured_graph() : std::make_unique<EagerGraph>();
    for (int i = 0; i < 3; ++i) {
      step->run(*device.stream, [&] {
        device.ready->record(*device.stream);
        all_reduces.issue(1);
      });
      device.stream->synchronize();
    }
  } else if (behavior == "captured-error") {
    run_captured_steps(world, device, true);
  } else if (behavior == "captured-busy") {
    run_captured_steps(world, device, false);
  } else if (behavior == "killed") {
    AllReduces all_reduces(world, device);
    all_reduces.run(1, 2);
    if (world.rank() == 1) ::raise(SIGKILL);
    all_reduces.run(3, 9);
  } else if (behavior == "all-buckets") {
    AllReduces all_reduces(world, device);
    all_reduces.run(1, 9);
  } else if (behavior == "throws") {
    AllReduces all_reduces(world, device);
    all_reduces.issue(1);
    if (world.rank() == 1) fail(ErrorCode::internal, "thrown in a step");
    all_reduces.run(2, 9);
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
    if (world && world->cause_of_loss())
      log::error("the cause of the loss is known: {}", world->cause_of_loss()->what());
    if (world) world->abort(kExitFailed);
    return kExitFailed;
  }
}

const test::Role role("nccl-lost-rank", child);

}  // namespace
}  // namespace lockstep::comm
