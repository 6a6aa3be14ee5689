// RUN/trace.json: what all ranks did when, in the Trace Event Format of Chrome, which Perfetto and chrome://tracing
// open. A process is a rank, a row of it a thread.
//
// Ranks of a node share a clock. Those of other nodes are put on rank 0's by what a collective proves: nobody leaves
// it before all have come, so that of rank r, which comes at a_r and leaves at b_r by its own clock,
//     a_r - b_0 <= (clock of r) - (clock of rank 0) <= b_r - a_0.
// The narrowest bounds of some rounds count, at the start and at the end of the run; in between, clocks run evenly.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "lockstep/communicator.h"
#include "lockstep/trace.h"

namespace lockstep::train {

/// How far this rank's clock is ahead of rank 0's, at a time of its own, and by how much that may be wrong.
struct ClockOffset {
  trace::Clock::time_point at;
  std::chrono::duration<double, std::micro> offset{0}, uncertainty{0};
};

/// Collective.
ClockOffset measure_clock_offset(World& world);

/// Starts the trace of this rank. `directory` is the run's; nothing is there before write().
class TraceFile {
 public:
  TraceFile(World& world, std::string directory);

  /// At the end of the run, collective: each rank writes what it has beside trace.json, rank 0 puts it together. Where
  /// that fails, a warning says so: the run itself is done.
  void write() const;

 private:
  struct Part;
  Part write_part(const std::vector<trace::RowEvents>& rows, const ClockOffset& now) const;
  void merge(const std::vector<Part>& parts) const;
  std::string part_path(int rank) const;

  World& world_;
  std::string directory_;
  ClockOffset at_start_;
  trace::Clock::time_point begin_;
};

}  // namespace lockstep::train
