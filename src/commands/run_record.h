// What the files of a run tell about it, and the page of `lockstep report RUN` that shows it: metrics.jsonl,
// metrics.json, status, the log, and one step of trace.json. The run may be in progress, resumed or crashed, so any of
// them may be missing or end in the middle of a line.
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/config.h"
#include "page/page.h"

namespace lockstep::commands {

/// The figures of all events of a kind, by the keys of metrics.jsonl. All columns have the same length, with NaN where
/// an event lacks the figure.
class EventTable {
 public:
  void add(const nlohmann::ordered_json& event);
  std::size_t size() const { return size_; }
  std::vector<std::string> keys() const;
  bool has(const std::string& key) const;  // whether any event has a finite figure
  std::vector<double> column(const std::string& key) const;
  /// The last figure that is finite; NaN if there is none.
  double last(const std::string& key) const;

 private:
  std::size_t size_ = 0;
  std::map<std::string, std::vector<double>> columns_;
};

/// Means and maxima over the logged steps since the number of ranks last changed.
struct RankFigures {
  std::string host;
  double data_wait_seconds = 0, exposed_communication_seconds = 0;  // sums over n_steps
  double memory_bytes = NAN;                                        // the greatest
};

/// What the model generated for a prompt after a step (evaluation.generate).
struct SampleOfStep {
  std::int64_t step = 0;
  std::string text;
};

struct RunRecord {
  std::string path;
  Config config;
  std::string status;  // of RUN/status; empty if there is none
  EventTable steps, evaluations, epochs;
  std::string unit = "samples";                                            // what the run counts
  std::vector<std::pair<std::string, std::vector<SampleOfStep>>> samples;  // of each prompt
  double first_time_unix = NAN, last_time_unix = NAN;
  std::vector<RankFigures> ranks;
  std::size_t n_rank_steps = 0;
  double rank_step_seconds = 0;                                       // the sum over n_rank_steps
  nlohmann::ordered_json summary = nlohmann::ordered_json::object();  // metrics.json
  int n_starts = 0;                                                   // starts that the log records
  std::vector<std::pair<std::string, std::string>> machine;  // of the last start, from the log: "rank 0", "device"
  std::string log_end;                                       // its last lines
  std::optional<page::Timeline> timeline;
  std::string timeline_note;       // why there is none
  std::vector<std::string> notes;  // what is damaged, in sentences
};

/// `run`: its directory (run_argument()). Throws an error of the configuration if config.yaml cannot be read, and usage
/// if metrics.jsonl has no event that can be used.
RunRecord read_run_record(const std::string& run);

page::Page page_of_run(const RunRecord& run);
/// The figures on the page as JSON for programs, by the keys of metrics.jsonl. `page`: where the page was written.
nlohmann::ordered_json json_of_run(const RunRecord& run, const std::string& page);

}  // namespace lockstep::commands
