// Limits on memory: which errors count as out_of_memory, and what messages name.
#include "lockstep/memory_limit.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdlib>
#include <new>
#include <stdexcept>
#include <system_error>

#include "base/failure.h"

namespace lockstep {
namespace {

/// Leaves this much address space to the process; for death tests.
void leave(std::uint64_t size_bytes) {
  rlimit limit{};
  ::getrlimit(RLIMIT_AS, &limit);
  const rlimit ample{std::uint64_t{1} << 46, limit.rlim_max};
  ::setrlimit(RLIMIT_AS, &ample);
  const MemoryLimit now = limit_of_process();
  const rlimit tight{now.peak_bytes + size_bytes, limit.rlim_max};
  ::setrlimit(RLIMIT_AS, &tight);
}

/// Ends a death test: with 0 if the error has the code and the message names the text.
[[noreturn]] void end_with(const Error& error, ErrorCode code, const std::string& text) {
  std::fprintf(stderr, "%s", error.what());
  std::_Exit(error.code() == code && std::string(error.what()).find(text) != std::string::npos ? 0 : 1);
}

const std::runtime_error kOfLibrary("could not create a primitive");

TEST(MemoryLimitDeathTest, ErrorsOfLibrariesAtTheLimit) {
  const auto exits = ::testing::ExitedWithCode(0);
  EXPECT_EXIT((leave(1 << 20), end_with(as_error(kOfLibrary), ErrorCode::out_of_memory, "ulimit -v")), exits,
              "could not create a primitive");
  EXPECT_EXIT((leave(1 << 20),
               end_with(as_error(Error(ErrorCode::library, "it failed")), ErrorCode::out_of_memory, "ulimit -v")),
              exits, "it failed");
  const std::system_error thread(EAGAIN, std::generic_category());
  EXPECT_EXIT((leave(1 << 20), end_with(as_error(thread), ErrorCode::out_of_memory, "ulimit -v")), exits, "thread");
  // The system names missing memory itself, and operator new too, however large the request was.
  EXPECT_EXIT(
      (leave(std::uint64_t{1} << 46), end_with(as_error(std::bad_alloc()), ErrorCode::out_of_memory, "ulimit -v")),
      exits, "");
  const Error mapped(ErrorCode::comm_shared_memory, "cannot map 1 MiB: Cannot allocate memory");
  EXPECT_EXIT((leave(std::uint64_t{1} << 46), end_with(as_error(mapped), ErrorCode::out_of_memory, "ulimit -v")), exits,
              "cannot map");
}

TEST(MemoryLimitDeathTest, OtherErrorsKeepTheirCode) {
  const auto exits = ::testing::ExitedWithCode(0);
  EXPECT_EXIT(
      (leave(1 << 20), end_with(as_error(Error(ErrorCode::cannot_open, "no file")), ErrorCode::cannot_open, "no file")),
      exits, "");
  EXPECT_EXIT((leave(std::uint64_t{1} << 46), end_with(as_error(kOfLibrary), ErrorCode::internal, "primitive")), exits,
              "");
}

TEST(MemoryLimitTest, TooFewThreads) {
  const Error error = as_error(std::system_error(EAGAIN, std::generic_category()));
  EXPECT_EQ(error.code(), ErrorCode::system_call);
  EXPECT_NE(std::string(error.what()).find("ulimit -u"), std::string::npos) << error.what();
}

TEST(MemoryLimitDeathTest, WhatCannotBeMappedIsRefused) {
  EXPECT_NO_THROW(require_mappable(1 << 20, "HDF5"));
  EXPECT_EXIT(
      {
        leave(1 << 20);
        try {
          require_mappable(std::size_t{64} << 20, "HDF5");
        } catch (const Error& error) {
          end_with(error, ErrorCode::out_of_memory, "ulimit -v");
        }
      },
      ::testing::ExitedWithCode(0), "HDF5");
}

}  // namespace
}  // namespace lockstep
