// The MLflow metrics into which lines of metrics.jsonl are converted, and how far a file was read that grows, is cut or
// is replaced.
#include "mlflow/events.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "run/metrics_file.h"

namespace lockstep::mlflow {
namespace {

std::map<std::string, double> values_of(const Event& event) {
  std::map<std::string, double> values;
  for (const Metric& metric : event.metrics) values[metric.key] = metric.value;
  EXPECT_EQ(values.size(), event.metrics.size()) << "a key occurs twice";
  return values;
}

Event event_in(const std::string& line) {
  return event_of(nlohmann::ordered_json::parse(line, nullptr, /*allow_exceptions=*/false));
}

using Values = std::map<std::string, double>;

TEST(MlflowEvents, AStepHasTheNamesOfTensorBoard) {
  const Event event = event_in(
      R"({"event":"step","time_unix":1700000000.25,"step":7,"epoch":1,"samples":84,"loss":2.5,"accuracy":null,)"
      R"("learning_rate":0.1,"step_seconds":0.5,"tokens_per_second":24.0,"memory_bytes":5000000,"last_step":9,"ranks":1,)"
      R"("skipped_steps":2,"trained_tokens":84,"training_seconds":3.0,"run_seconds":4.0,)"
      R"("per_rank":{"host":["a"],"loss":[2.5],"tokens_per_second":[24.0],"memory_bytes":[5000000],"utilisation":[0.5]}})");
  EXPECT_EQ(values_of(event), (Values{{"train/loss", 2.5},
                                      {"train/learning_rate", 0.1},
                                      {"performance/step_seconds", 0.5},
                                      {"performance/tokens_per_second", 24},
                                      {"performance/memory_bytes", 5e6},
                                      {"system/rank_0/system_memory_usage_megabytes", 5},
                                      {"system/rank_0/cpu_utilization_percentage", 50}}));
  for (const Metric& metric : event.metrics) {
    EXPECT_EQ(metric.step, 7);
    EXPECT_EQ(metric.time_ms, 1700000000250);
  }
}

TEST(MlflowEvents, RanksOnDevicesReportBothMemories) {
  const Event event =
      event_in(R"({"event":"step","time_unix":1.0,"step":1,"per_rank":{"host":["a","b"],"loss":[2.0,3.0],)"
               R"("data_wait_seconds":[0.0,0.25],"memory_bytes":[3000000,4000000],"utilisation":[0.25,null],)"
               R"("host_memory_bytes":[1000000,2000000],"cpu_utilisation":[1.5,1.0]}})");
  EXPECT_EQ(values_of(event), (Values{{"ranks_loss/0", 2},
                                      {"ranks_loss/1", 3},
                                      {"ranks_data_wait_seconds/0", 0},
                                      {"ranks_data_wait_seconds/1", 0.25},
                                      {"system/rank_0/gpu_0_memory_usage_megabytes", 3},
                                      {"system/rank_1/gpu_0_memory_usage_megabytes", 4},
                                      {"system/rank_0/gpu_0_utilization_percentage", 25},
                                      {"system/rank_0/system_memory_usage_megabytes", 1},
                                      {"system/rank_1/system_memory_usage_megabytes", 2},
                                      {"system/rank_0/cpu_utilization_percentage", 150},
                                      {"system/rank_1/cpu_utilization_percentage", 100}}));
}

TEST(MlflowEvents, ManyRanksAreNotSentOneByOne) {
  const auto n_metrics = [](int n_ranks) {
    std::string list = "1.0";
    for (int rank = 1; rank < n_ranks; ++rank) list += ",1.0";
    return event_in(R"({"event":"step","time_unix":1.0,"step":1,"loss":1.0,"per_rank":{"loss":[)" + list + "]}}")
        .metrics.size();
  };
  EXPECT_EQ(n_metrics(run::kMaxRankCurves), run::kMaxRankCurves + 1);
  EXPECT_EQ(n_metrics(run::kMaxRankCurves + 1), 1u);
}

TEST(MlflowEvents, EvaluationsAndEpochsHaveGroupsOfTheirOwn) {
  EXPECT_EQ(values_of(event_in(R"({"event":"evaluation","time_unix":1.0,"step":1,"epoch":1,"samples":48,"loss":2.0,)"
                               R"("ema_loss":1.5,"evaluation_seconds":0.1,"samples_per_second":480.0,)"
                               R"("trained_samples":12})")),
            (Values{{"validation/loss", 2}, {"validation/ema_loss", 1.5}}));
  EXPECT_EQ(values_of(event_in(R"({"event":"epoch","time_unix":1.0,"step":1,"epoch":1,"tokens":48,"loss":2.0,)"
                               R"("learning_rate":0.1,"tokens_per_second":480.0,"epoch_seconds":2.0,)"
                               R"("validation_loss":3.0,"trained_tokens":12})")),
            (Values{{"epoch/loss", 2}, {"epoch/tokens_per_second", 480}}));
  EXPECT_TRUE(event_in(R"({"event":"checkpoint","time_unix":1.0,"step":1,"path":"a","size_bytes":5})").metrics.empty());
}

TEST(MlflowEvents, DamagedLinesHaveNoMetrics) {
  for (const char* line :
       {"", "{", "[]", "1", R"({"event":"step","loss":1.0})", R"({"event":"step","time_unix":"a","step":1})",
        R"({"event":"step","time_unix":1e300,"step":1,"loss":1.0})",
        R"({"event":"step","time_unix":1.0,"step":1e300,"loss":1.0})",
        R"({"event":5,"time_unix":1.0,"step":1,"loss":1.0})",
        R"({"event":"step","time_unix":1.0,"step":1,"per_rank":{"loss":5}})",
        R"({"event":"step","time_unix":1.0,"step":1,"per_rank":[]})"})
    EXPECT_TRUE(event_in(line).metrics.empty()) << line;
}

class MlflowReader : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "lockstep_events_XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
    path_ = directory_ / "metrics.jsonl";
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  static std::string line(int step, double time, double loss = 1) {
    return "{\"event\":\"step\",\"time_unix\":" + std::to_string(time) + ",\"step\":" + std::to_string(step) +
           ",\"loss\":" + std::to_string(loss) + "}\n";
  }
  void write(const std::string& content) const { std::ofstream(path_, std::ios::binary) << content; }
  /// The steps that were not read before. They are read in batches of at most `most`.
  std::vector<int> read(std::size_t most = 1000) {
    EventReader reader(path_, position_);
    std::vector<int> steps;
    for (std::uint64_t before = UINT64_MAX; reader.position().bytes != before;) {
      before = reader.position().bytes;
      std::vector<Metric> metrics;
      reader.read(most, metrics);
      EXPECT_LE(metrics.size(), most);
      for (const Metric& metric : metrics) steps.push_back(static_cast<int>(metric.step));
    }
    position_ = reader.position();
    return steps;
  }

  std::filesystem::path directory_;
  std::string path_;
  Position position_;
};

using Steps = std::vector<int>;

TEST_F(MlflowReader, ReadsCompleteLinesOnce) {
  EXPECT_EQ(read(), Steps{});  // there is no file
  const std::string two = line(1, 10) + line(2, 11);
  write(two + line(3, 12).substr(0, 20));
  EXPECT_EQ(read(), (Steps{1, 2}));
  EXPECT_EQ(read(), Steps{});
  write(two + line(3, 12) + "damaged\n" + line(4, 13));
  EXPECT_EQ(read(1), (Steps{3, 4}));
  EXPECT_EQ(read(), Steps{});
}

TEST_F(MlflowReader, ARunThatResumesSendsOnlyWhatIsNew) {
  write(line(1, 10) + line(2, 11) + line(3, 12) + line(4, 13));
  EXPECT_EQ(read(), (Steps{1, 2, 3, 4}));
  // Resumed after step 2: the later lines are gone.
  write(line(1, 10) + line(2, 11));
  EXPECT_EQ(read(), Steps{});
  write(line(1, 10) + line(2, 11) + line(3, 20) + line(4, 21) + line(5, 22));
  EXPECT_EQ(read(), (Steps{3, 4, 5}));
}

TEST_F(MlflowReader, ACutThatNobodySawIsRecognised) {
  write(line(1, 10) + line(2, 11) + line(3, 12) + line(4, 13));
  EXPECT_EQ(read(), (Steps{1, 2, 3, 4}));
  // When it is read again, the file is as long as before, and then longer.
  write(line(1, 10) + line(2, 11) + line(3, 20) + line(4, 21));
  EXPECT_EQ(read(), (Steps{3, 4}));
  write(line(1, 30) + line(2, 31) + line(3, 32) + line(4, 33) + line(5, 34));  // started over
  EXPECT_EQ(read(), (Steps{1, 2, 3, 4, 5}));
}

TEST_F(MlflowReader, ALineInFrontOfTheCutIsKept) {
  // The checkpoint of step 2 was recorded after step 3, which the resumed run repeats.
  const std::string checkpoint = R"({"event":"checkpoint","time_unix":12.5,"step":2})"
                                 "\n";
  write(line(1, 10) + line(2, 11) + line(3, 12) + checkpoint);
  EXPECT_EQ(read(), (Steps{1, 2, 3}));
  write(line(1, 10) + line(2, 11) + checkpoint + line(3, 20));
  EXPECT_EQ(read(), Steps{3});
}

}  // namespace
}  // namespace lockstep::mlflow
