// The main() of a test program that runs on several ranks: every rank runs the same tests in one world.
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "comm/world.h"
#include "lockstep/error.h"
#include "lockstep/log.h"

namespace lockstep::comm {

/// The world of this test program, from its main().
inline World* test_world = nullptr;

/// Of every rank; its memory is the host's.
inline Backend& test_backend() {
  static const std::unique_ptr<Backend> backend = make_backend({.device = "cpu", .threads = 1});
  return *backend;
}

/// Starts the world, runs all tests on every rank, and fails on every rank when one failed on any.
inline int run_tests_in_world(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  try {
    const std::unique_ptr<World> world = start_world(&argc, &argv);
    test_world = world.get();
    if (world->rank() != 0) {
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
    return world->any(RUN_ALL_TESTS() != 0) ? 1 : 0;
  } catch (const std::exception& e) {
    log::error("{}", e.what());
    return 1;
  }
}

inline const HostEvent at_once;  // a `ready` that is done; it must live as long as the all-reduce

}  // namespace lockstep::comm
