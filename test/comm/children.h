// For tests that lose ranks: the test program starts itself again as several ranks, with a role
// (test/support/program.h), and checks their output and exit statuses.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <string>

#include "test/support/program.h"

namespace lockstep::comm {

struct Outcome {
  std::string output;
  int exit_status = -1;
  double seconds = 0;
};

inline Outcome run_command(const std::string& command) {
  Outcome out;
  const auto begin = std::chrono::steady_clock::now();
  FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return out;
  char buffer[4096];
  while (const std::size_t n = std::fread(buffer, 1, sizeof(buffer), pipe)) out.output.append(buffer, n);
  const int status = ::pclose(pipe);
  out.exit_status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  out.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return out;
}

using test::self;

inline Outcome run_ranks(int ranks, const std::string& environment, const std::string& program) {
  // Without `timeout` a failing test could hang forever.
  return run_command("env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 " + environment +
                     " timeout -s KILL 60 mpirun --oversubscribe --bind-to none -n " + std::to_string(ranks) + " " +
                     program);
}

/// With this option, mpirun does not end the other ranks when one dies, so Lockstep must do so. mpirun then returns 0,
/// and the exit status of each rank is printed as "status 1 of rank 0".
inline Outcome run_ranks_with_recovery(int ranks, const std::string& environment, const std::string& role) {
  return run_ranks(ranks, "OMPI_MCA_orte_enable_recovery=1 " + environment,
                   "sh -c '" + self() + " " + role + "; echo status $? of rank $OMPI_COMM_WORLD_RANK'");
}

inline bool contains(const Outcome& outcome, const std::string& text) {
  return outcome.output.find(text) != std::string::npos;
}

}  // namespace lockstep::comm
