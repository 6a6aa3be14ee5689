// Tells when steps wait for data, and what would help: once a minute, and at the end. All ranks wait for the one that
// waits most, so the report is about that rank.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace lockstep::run {

/// What the readers of a rank have done since its first step of this start ended, and how long its steps have waited
/// for them. The first step waits for the first batch in any case.
struct DataUsage {
  double seconds = 0;       // of steps
  double wait_seconds = 0;  // part of them
  double busy_seconds = 0;  // of all readers together
  double read_seconds = 0;  // part of them, of samples that are finished
  double n_samples = 0;     // finished
};
DataUsage operator-(const DataUsage& a, const DataUsage& b);

/// How a rank reads its samples, and what could be changed.
struct DataSource {
  int readers = 1, cores = 1;       // of a rank
  std::string samples = "samples";  // what samples are called
  std::vector<std::string> faster;  // what would make a sample faster to read
};

/// The figures of a report, also where there is none.
struct DataFigures {
  double wait_share = 0;       // the part of the steps' time in which they waited for data
  double busy_readers = 0;     // on average
  double rate_per_reader = 0;  // samples/s
};
DataFigures figures_of(const DataUsage& usage, const DataSource& source);

/// "data: 38 % of the time; 8 of 8 readers busy, 1,150 samples/s per reader; more readers would help". Empty if the
/// steps waited too little to matter, or took too little time to judge.
std::string data_report(const DataUsage& usage, const DataSource& source);

class DataWatch {
 public:
  DataWatch(DataSource source, Clock::time_point now) : source_(std::move(source)), last_(now) {}
  /// True once a minute. Other ranks have other clocks, so they must be told.
  bool is_due(Clock::time_point now);
  /// `totals`: of each rank.
  void update(std::span<const DataUsage> totals);
  /// The advice of a data set can change as it reads samples.
  void set_faster(std::vector<std::string> faster) { source_.faster = std::move(faster); }
  /// The report on the steps between the last report and the last update. Empty if there is nothing to report.
  std::string report();
  /// The summary of all steps up to the last update.
  std::string summary() const;
  DataFigures figures() const;

 private:
  DataSource source_;
  Clock::time_point last_;                    // when the last minute began
  std::vector<DataUsage> totals_, reported_;  // of each rank: up to the last update, and to the last report
};

/// Finds the rank that the others wait for. In each step a rank spends some time waiting for sums over ranks. All ranks
/// end that wait together, so the rank that waits least came last, and the others wait for it by the difference.
struct SlowRank {
  int rank = 0;
  double waited_for = 0;  // part of the other ranks' time, on average, 0 to 1
};

/// `waits`: the part of its time in which each rank waited. Returns the slowest rank if the others wait for it during
/// more than `limit` of their time.
std::optional<SlowRank> find_slow_rank(std::span<const double> waits, double limit);

}  // namespace lockstep::run
