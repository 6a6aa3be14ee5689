// The world of a test that runs on several ranks. Every rank runs the same tests in one world, which starts when the
// first test uses it: `mpirun -n 3 build/test/comm_test --gtest_filter='World.*'`.
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "comm/world.h"
#include "lockstep/error.h"
#include "lockstep/log.h"
#include "test/support/program.h"

namespace lockstep::comm {

class TestWorld {
 public:
  World& operator*() { return get(); }
  World* operator->() { return &get(); }
  bool has_started() const { return world_ != nullptr; }

  /// Rank 0 prints all results, the other ranks only failures. If a test fails on any rank, the program fails on every
  /// rank.
  void start(double watchdog_seconds = Config::Comm{}.watchdog_seconds) {
    int argc = 0;
    char** argv = nullptr;
    world_ = start_world(&argc, &argv, watchdog_seconds);
    test::at_end = [this](int status) {
      const bool any_failed = world_->any(status != 0);
      world_.reset();
      return any_failed ? 1 : 0;
    };
    if (world_->rank() == 0) return;
    auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    struct Failures final : ::testing::EmptyTestEventListener {
      void OnTestPartResult(const ::testing::TestPartResult& result) override {
        if (result.failed()) {
          log::error("{}:{}: {}", result.file_name() ? result.file_name() : "?", result.line_number(),
                     result.summary());
        }
      }
    };
    listeners.Append(new Failures);
  }

 private:
  World& get() {
    if (!world_) start();
    return *world_;
  }
  std::unique_ptr<World> world_;
};

inline TestWorld test_world;

/// The CPU backend of this rank.
inline Backend& test_backend() {
  static const std::unique_ptr<Backend> backend = make_backend({.device = "cpu", .threads = 1});
  return *backend;
}

inline const HostEvent ready_now;  // a `ready` event that is always done

}  // namespace lockstep::comm
