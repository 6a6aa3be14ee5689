// RUN/trace.json: what all ranks did and when, in the Trace Event Format of Chrome, which Perfetto and chrome://tracing
// open. A process is a rank, and a row of it is a thread.
//
// Ranks of a node share a clock. Times of other nodes are converted to rank 0's clock by means of a collective: no rank
// leaves it before all have entered. So for rank r, which enters at a_r and leaves at b_r by its own clock,
//     a_r - b_0 <= (clock of r) - (clock of rank 0) <= b_r - a_0.
// The narrowest bounds of several rounds are used, at the start and at the end of the run. In between, clocks are taken
// to run evenly.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "lockstep/communicator.h"
#include "lockstep/trace.h"

namespace lockstep::run {

/// How far this rank's clock is ahead of rank 0's at a time of its own, and the possible error.
struct ClockOffset {
  trace::Clock::time_point at;
  std::chrono::duration<double, std::micro> offset{0}, uncertainty{0};
};

/// Collective.
ClockOffset measure_clock_offset(World& world);

/// Starts the trace of this rank. `directory` is the run's; write() is the first to write to it.
class TraceFile {
 public:
  TraceFile(World& world, std::string directory);

  /// At the end of the run, collective: each rank writes its part next to trace.json, and rank 0 merges the parts. A
  /// failure leads only to a warning, since the run itself is done.
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

}  // namespace lockstep::run
