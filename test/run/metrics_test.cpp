// The files that a run writes for programs and people: metrics.jsonl, metrics.json, event files, the epoch line, the
// progress bar. `run_test --write-run DIRECTORY` writes the run that tensorboard_test.py reads with TensorBoard's own
// reader.
#include "run/metrics.h"
#include "base/progress_bar.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "lockstep/error.h"
#include "run/tensorboard.h"
#include "test/support/emulator.h"
#include "test/support/program.h"

namespace lockstep::run {
namespace {

using Json = nlohmann::json;

/// The naming of figures for images.
Naming naming() {
  static const std::unique_ptr<tasks::Task> task = tasks::make_task(Config{});
  return naming_of(*task);
}

StepRecord a_step(std::int64_t step) {
  StepRecord r;
  r.step = step;
  r.epoch = 1;
  r.samples = 128 * step;
  r.measures = {2.0 / static_cast<double>(step), 0.25};
  r.learning_rate = 0.1;
  r.gradient_norm = 1.5;
  r.step_seconds = 0.5;
  r.rate = 256;
  r.model_flops_rate = 5e9;
  r.model_flops_utilization = 0.625;
  r.data_wait_seconds = 0.01;
  r.exposed_communication_seconds = 0.02;
  r.memory_bytes = 123456789012.0;
  r.last_step = 12;
  r.ranks = 2;
  r.totals = {.count = 128.0 * static_cast<double>(step), .training_seconds = 3, .run_seconds = 4, .skipped_steps = 2};
  r.per_rank = {.loss = {1.0, 3.0},
                .data_wait_seconds = {0.01, 0.0},
                .memory_bytes = {123456789012.0, 5.0},
                .utilisation = {0.9, 0.8},
                .host_memory_bytes = {},
                .cpu_utilisation = {},
                .exposed_communication_seconds = {0.02, 0.005},
                .rate = {126.0, 130.0},
                .hosts = {"node1", "node2"}};
  return r;
}

/// Steps 1 to 6, evaluated after 3 and 6, with a checkpoint after 3.
void write_run(Metrics& metrics, std::int64_t first, std::int64_t last) {
  for (std::int64_t step = first; step <= last; ++step) {
    metrics.step(a_step(step));
    if (step % 3 != 0) continue;
    metrics.evaluation(
        {.step = step, .epoch = step / 3, .count = 500, .measures = {1.25, 0.5}, .seconds = 2, .rate = 250});
    metrics.epoch({.step = step, .epoch = step / 3, .epochs = 2, .count = 384, .train = {1.5, 0.0}});
    metrics.checkpoint({.step = step, .path = "step.h5", .seconds = 0.5, .size_bytes = 45e6});
  }
}

class MetricsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "lockstep_metrics_XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  Metrics::Options options(std::int64_t resume_step = -1) const {
    return {
        .directory = directory_, .naming = naming(), .resume_step = resume_step, .tensorboard = true, .enabled = true};
  }
  std::vector<Json> lines() const {
    std::vector<Json> all;
    std::ifstream in(directory_ + "/metrics.jsonl");
    for (std::string line; std::getline(in, line);) all.push_back(Json::parse(line));
    return all;
  }
  std::vector<std::string> event_files() const {
    std::vector<std::string> all;
    for (const auto& entry : std::filesystem::directory_iterator(directory_ + "/tensorboard"))
      all.push_back(entry.path());
    return all;
  }

  std::string directory_;
};

TEST_F(MetricsTest, AStepHasTheseKeys) {
  Metrics(options()).step(a_step(4));
  ASSERT_EQ(lines().size(), 1u);
  Json line = lines()[0];
  EXPECT_GT(line["time_unix"].get<double>(), 1.7e9);
  line.erase("time_unix");
  EXPECT_EQ(line, Json::parse(R"({"event": "step", "step": 4, "epoch": 1, "samples": 512, "loss": 0.5, "accuracy": 0.25,
    "learning_rate": 0.1, "gradient_norm": 1.5, "skipped_steps": 2, "trained_samples": 512,
    "training_seconds": 3.0, "run_seconds": 4.0, "step_seconds": 0.5, "samples_per_second": 256.0,
    "model_flops_rate": 5e9, "model_flops_utilization": 0.625, "data_wait_seconds": 0.01, "exposed_communication_seconds": 0.02, "memory_bytes": 123456789012, "last_step": 12,
    "ranks": 2, "per_rank": {"host": ["node1", "node2"], "loss": [1.0, 3.0], "samples_per_second": [126.0, 130.0],
      "data_wait_seconds": [0.01, 0.0], "exposed_communication_seconds": [0.02, 0.005],
      "memory_bytes": [123456789012, 5], "utilisation": [0.9, 0.8]}})"));
  EXPECT_TRUE(line["memory_bytes"].is_number_integer());
}

TEST_F(MetricsTest, AStepOfAModelWithConvolutionsHasNoUtilization) {
  StepRecord r = a_step(4);
  r.model_flops_utilization.reset();
  Metrics(options()).step(r);
  EXPECT_TRUE(lines()[0].contains("model_flops_rate"));
  EXPECT_FALSE(lines()[0].contains("model_flops_utilization"));
}

TEST_F(MetricsTest, TensorBoardHasACurvePerRank) {
  const auto tags_with = [&](std::size_t n_ranks) {
    std::filesystem::remove_all(directory_ + "/tensorboard");
    StepRecord record = a_step(4);
    record.per_rank.loss.assign(n_ranks, 1.0);
    record.per_rank.rate.assign(n_ranks, 128.0);
    Metrics(options()).step(record);
    return read_file(event_files().at(0));
  };
  for (const char* tag : {"ranks_loss/0", "ranks_loss/1", "ranks_utilisation/1", "ranks_memory_bytes/1",
                          "ranks_samples_per_second/1", "ranks_exposed_communication_seconds/1"})
    EXPECT_NE(tags_with(2).find(tag), std::string::npos) << tag;
  EXPECT_EQ(tags_with(1).find("ranks_loss"), std::string::npos);
  EXPECT_EQ(tags_with(65).find("ranks_loss"), std::string::npos);
}

TEST_F(MetricsTest, AStepHasTheTimeOfItsExchangesIfItIsMeasured) {
  StepRecord record = a_step(4);
  record.exchange_seconds = 0.03;
  Metrics(options()).step(record);
  EXPECT_EQ(lines().at(0)["exchange_seconds"], 0.03);
}

TEST_F(MetricsTest, AStepHasItsLossScaleIfThereIsOne) {
  StepRecord record = a_step(4);
  record.loss_scale = 65536;
  Metrics(options()).step(record);
  EXPECT_EQ(lines().at(0).at("loss_scale"), 65536.0);
}

TEST_F(MetricsTest, RanksOnADeviceAlsoReportTheirProcesses) {
  StepRecord record = a_step(4);
  record.per_rank.host_memory_bytes = {1e9, 2e9};
  record.per_rank.cpu_utilisation = {1.5, 0.5};
  Metrics(options()).step(record);
  const Json per_rank = lines().at(0)["per_rank"];
  EXPECT_EQ(per_rank["host_memory_bytes"], Json::parse("[1000000000, 2000000000]"));
  EXPECT_EQ(per_rank["cpu_utilisation"], Json::parse("[1.5, 0.5]"));
}

TEST_F(MetricsTest, OtherEventsNameThemselves) {
  Metrics metrics(options());
  write_run(metrics, 3, 3);
  metrics.epoch({.step = 6, .epoch = 2, .epochs = 2, .train = {1.0, 0.75}, .validation = {3, 0.5}});
  const auto all = lines();
  ASSERT_EQ(all.size(), 5u);
  EXPECT_EQ(all[1]["event"], "evaluation");
  EXPECT_EQ(all[1]["samples"], 500);
  EXPECT_EQ(all[1]["accuracy"], 0.5);
  EXPECT_EQ(all[1]["evaluation_seconds"], 2.0);
  EXPECT_EQ(all[2]["event"], "epoch");
  EXPECT_EQ(all[2]["loss"], 1.5);
  EXPECT_FALSE(all[2].contains("validation_loss"));
  EXPECT_EQ(all[3]["event"], "checkpoint");
  EXPECT_EQ(all[3]["size_bytes"], 45000000);
  EXPECT_EQ(all[4]["accuracy"], 0.75);
  EXPECT_EQ(all[4]["validation_loss"], 3.0);
  EXPECT_EQ(all[4]["validation_accuracy"], 0.5);
}

TEST_F(MetricsTest, NumbersThatAreNotFiniteAreNull) {
  StepRecord record = a_step(1);
  record.measures[0] = std::numeric_limits<double>::quiet_NaN();
  record.gradient_norm = std::numeric_limits<double>::infinity();
  record.memory_bytes = -std::numeric_limits<double>::infinity();
  record.per_rank.loss = {std::numeric_limits<double>::quiet_NaN(), 1.0};
  Metrics(options()).step(record);
  const Json line = lines().at(0);
  EXPECT_TRUE(line["loss"].is_null());
  EXPECT_TRUE(line["gradient_norm"].is_null());
  EXPECT_TRUE(line["memory_bytes"].is_null());
  EXPECT_TRUE(line["per_rank"]["loss"][0].is_null());
}

TEST_F(MetricsTest, ResumingRemovesLaterSteps) {
  {
    Metrics metrics(options());
    write_run(metrics, 1, 5);
  }
  // As left by a process that had written a later step and was killed while it wrote.
  std::ofstream(directory_ + "/metrics.jsonl", std::ios::app) << "{\"event\":\"step\",\"step\":2,\"epo";
  {
    Metrics metrics(options(3));
    write_run(metrics, 4, 6);
  }
  std::vector<std::int64_t> steps;
  for (const Json& line : lines()) {
    if (line["event"] == "step") steps.push_back(line["step"]);
  }
  EXPECT_EQ(steps, (std::vector<std::int64_t>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(lines().size(), 6u + 2 * 3);
}

TEST_F(MetricsTest, ResumingKeepsAFileThatItCannotRead) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  if (test::in_emulator()) GTEST_SKIP() << "qemu does not change users";
  char folder[] = "/tmp/lockstep-metrics.XXXXXX";  // TMPDIR may be closed to others
  ASSERT_NE(::mkdtemp(folder), nullptr);
  Metrics::Options starts = options(), resumes = options(3);
  starts.directory = resumes.directory = folder;
  {
    Metrics metrics(starts);
    write_run(metrics, 1, 5);
  }
  const std::string path = std::string(folder) + "/metrics.jsonl", before = read_file(path);
  ASSERT_EQ(::chmod(folder, 0777), 0);
  ASSERT_EQ(::chmod(path.c_str(), 0200), 0);
  constexpr uid_t kNobody = 65534;
  ASSERT_EQ(::seteuid(kNobody), 0);
  EXPECT_THROW(recorded_steps(folder), Error);
  EXPECT_THROW(Metrics{resumes}, Error);
  ASSERT_EQ(::seteuid(0), 0);
  EXPECT_EQ(read_file(path), before);
  std::filesystem::remove_all(folder);
}

TEST_F(MetricsTest, ResumingTellsWhatEarlierStartsDid) {
  {
    Metrics metrics(options());
    write_run(metrics, 1, 5);
    StepRecord later = a_step(6);
    later.totals.run_seconds = 40;
    metrics.step(later);
    metrics.checkpoint({.step = 5, .path = "step.h5", .totals = {.count = 640, .run_seconds = 5}});  // started earlier
  }
  const History none = Metrics(options(0)).history();
  EXPECT_EQ(none.totals.count, 0);
  EXPECT_TRUE(none.train_measures.empty() && none.evaluated.last.empty() && none.evaluated.best.empty());
  {
    Metrics metrics(options());
    write_run(metrics, 1, 5);
    metrics.step(a_step(6));
    metrics.evaluation({.step = 6, .measures = {NAN, 0.75}});
  }
  const History before_six = [&] {
    const std::string all = read_file(directory_ + "/metrics.jsonl");
    const History found = Metrics(options(5)).history();
    replace_file(directory_ + "/metrics.jsonl", all);
    return found;
  }();
  EXPECT_EQ(before_six.step, 5);
  EXPECT_EQ(before_six.totals.count, 640);
  EXPECT_EQ(before_six.totals.skipped_steps, 2);
  EXPECT_EQ(before_six.train_measures, (std::vector<double>{2.0 / 5, 0.25}));
  EXPECT_EQ(before_six.evaluated.last, (std::vector<double>{1.25, 0.5})) << "those of the evaluation, not of a step";
  EXPECT_EQ(before_six.evaluated.best, (std::vector<double>{1.25, 0.5}));
  const History all = Metrics(options(6)).history();
  EXPECT_TRUE(std::isnan(all.evaluated.last.at(0)));
  EXPECT_EQ(all.train_measures, (std::vector<double>{2.0 / 6, 0.25}));
  EXPECT_EQ(all.evaluated.best, (std::vector<double>{1.25, 0.75}));
}

TEST_F(MetricsTest, EventsOfEarlierReleasesHaveNoTotals) {
  replace_file(directory_ + "/metrics.jsonl",
               "{\"event\": 1, \"step\": 1}\n{\"event\": \"evaluation\", \"step\": 2, \"skipped_steps\": \"many\", "
               "\"accuracy\": 0.5}\n");
  const History history = Metrics(options(3)).history();
  EXPECT_EQ(history.totals.run_seconds, 0);
  EXPECT_EQ(history.evaluated.best.at(1), 0.5);
}

TEST_F(MetricsTest, ASummaryIsKeptIfItIsAboutTheSameStep) {
  Metrics metrics(options());
  EXPECT_FALSE(metrics.keep_summary("done", 7));
  metrics.summary({.status = "stopped", .steps = 7, .totals = {.count = 900, .run_seconds = 12}});
  EXPECT_FALSE(metrics.keep_summary("done", 8));
  EXPECT_TRUE(metrics.keep_summary("done", 7));
  const Json summary = Json::parse(read_file(directory_ + "/metrics.json"));
  EXPECT_EQ(summary["status"], "done");
  EXPECT_EQ(summary["samples"], 900);
}

TEST_F(MetricsTest, AFreshRunReplacesTheFiles) {
  {
    Metrics metrics(options());
    write_run(metrics, 1, 5);
    metrics.summary({.status = "done"});
  }
  Metrics metrics(options());
  metrics.step(a_step(1));
  EXPECT_EQ(lines().size(), 1u);
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/metrics.json"));
  ASSERT_EQ(event_files().size(), 1u);
}

TEST_F(MetricsTest, EventFileIsCutAtARecordAndContinued) {
  {
    Metrics metrics(options());
    write_run(metrics, 1, 3);
  }
  ASSERT_EQ(event_files().size(), 1u);
  const std::string path = event_files()[0];
  const std::string until_three = read_file(path);
  EXPECT_EQ(events_until(until_three, 3), until_three.size());
  {
    Metrics metrics(options(3));
    write_run(metrics, 4, 5);
  }
  const std::string until_five = read_file(path);
  EXPECT_EQ(until_five.substr(0, until_three.size()), until_three);
  EXPECT_EQ(events_until(until_five, 3), until_three.size());
  EXPECT_EQ(events_until(until_five, 5), until_five.size());

  std::ofstream(path, std::ios::app) << "half a record";
  { const Metrics metrics(options(5)); }
  EXPECT_EQ(read_file(path), until_five);
  { const Metrics metrics(options(3)); }
  EXPECT_EQ(read_file(path), until_three);
  EXPECT_EQ(event_files().size(), 1u);
}

TEST_F(MetricsTest, DamagedEventsEndWhereTheDamageBegins) {
  {
    Metrics metrics(options());
    write_run(metrics, 1, 2);
  }
  const std::string good = read_file(event_files()[0]);
  for (std::size_t byte = 0; byte < good.size(); ++byte) {
    std::string bad = good;
    bad[byte] = static_cast<char>(bad[byte] ^ 0x40);
    EXPECT_LE(events_until(bad, 100), byte) << "byte " << byte;
    EXPECT_LT(events_until(good.substr(0, byte), 100), byte + 1);
  }
}

TEST_F(MetricsTest, OtherRanksWriteNothing) {
  Metrics::Options other = options();
  other.directory += "/absent";
  other.enabled = false;
  Metrics metrics(other);
  write_run(metrics, 1, 3);
  metrics.summary({.status = "done"});
  EXPECT_FALSE(std::filesystem::exists(other.directory));
}

TEST_F(MetricsTest, SummaryHoldsResultAndVersions) {
  Metrics metrics(options());
  metrics.summary({.status = "stopped",
                   .steps = 7,
                   .train_measures = {2.5, 0.125},
                   .evaluated = {.last = {NAN, 0.25}, .best = {1.5, 0.5}},
                   .totals = {.count = 900, .training_seconds = 9, .run_seconds = 12, .skipped_steps = 3},
                   .model_flops_rate = 2e9,
                   .model_flops_utilization = 0.5,
                   .data = {.wait_share = 0.25, .busy_readers = 6.5, .rate_per_reader = 1150},
                   .readers = 8,
                   .ranks = 4});
  const Json summary = Json::parse(read_file(directory_ + "/metrics.json"));
  EXPECT_EQ(summary["status"], "stopped");
  EXPECT_EQ(summary["steps"], 7);
  EXPECT_EQ(summary["skipped_steps"], 3);
  EXPECT_EQ(summary["final_train_loss"], 2.5);
  EXPECT_EQ(summary["final_train_accuracy"], 0.125);
  EXPECT_TRUE(summary["final_loss"].is_null());
  EXPECT_EQ(summary["final_accuracy"], 0.25);
  EXPECT_EQ(summary["best_loss"], 1.5);
  EXPECT_EQ(summary["samples_per_second"], 100.0);
  EXPECT_EQ(summary["model_flops_rate"], 2e9);
  EXPECT_EQ(summary["model_flops_utilization"], 0.5);
  EXPECT_EQ(summary["data_wait_share"], 0.25);
  EXPECT_EQ(summary["data_busy_readers"], 6.5);
  EXPECT_EQ(summary["data_readers"], 8);
  EXPECT_EQ(summary["data_samples_per_second_per_reader"], 1150.0);
  EXPECT_EQ(summary["best_accuracy"], 0.5);
  EXPECT_EQ(summary["samples"], 900);
  EXPECT_EQ(summary["seconds"], 12.0);
  EXPECT_EQ(summary["ranks"], 4);
  for (const char* key : {"version", "commit", "compiler"}) {
    EXPECT_FALSE(summary["versions"][key].get<std::string>().empty()) << key;
  }
  for (const char* library : {"MPI", "HDF5", "oneDNN", "fmt", "spdlog", "protobuf", "CLI11", "yaml-cpp"}) {
    EXPECT_FALSE(summary["versions"]["libraries"][library].get<std::string>().empty()) << library;
  }
}

TEST_F(MetricsTest, ASummaryHasNoFiguresOfEvaluationsThatWereNotMade) {
  Metrics metrics(options());
  metrics.summary({.status = "done", .steps = 7, .train_measures = {2.5, 0.125}});
  const Json summary = Json::parse(read_file(directory_ + "/metrics.json"));
  EXPECT_EQ(summary["final_train_loss"], 2.5);
  for (const char* key : {"final_loss", "final_accuracy", "best_loss", "best_accuracy"})
    EXPECT_FALSE(summary.contains(key)) << key;
}

TEST(Tensorboard, Crc32cOfTheStandard) {
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);            // the check value of CRC-32C
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);  // RFC 3720, appendix B.4
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62A8AB43u);
}

TEST(EpochLine, WithAndWithoutEvaluation) {
  EpochRecord record{.step = 1,
                     .epoch = 3,
                     .epochs = 3,
                     .count = 1,
                     .learning_rate = 0.001,
                     .train = {5.149, 0.0216},
                     .validation = {5.664, 0.0098},
                     .rate = 704.9};
  EXPECT_EQ(epoch_line(record, naming()),
            "Epoch [3/3] LR: 0.001000 | Loss (train, val): 5.149, 5.664 | Accuracy (train, val): 2.16%, 0.98% | "
            "Throughput: 704.9 img/s");
  record.validation = {};
  EXPECT_EQ(epoch_line(record, naming()),
            "Epoch [3/3] LR: 0.001000 | Loss (train): 5.149 | Accuracy (train): 2.16% | Throughput: 704.9 img/s");
}

/// A task names its figures. This one has a different measure and a different unit.
TEST_F(MetricsTest, FiguresAreNamedByTheTask) {
  const tasks::Measure measures[] = {
      tasks::loss_measure(),
      {.key = "perplexity", .unit = "", .epoch_digits = 1, .of = [](const LossSums& s) { return std::exp(s.loss); }}};
  Metrics::Options other = options();
  other.naming = {measures, {.name = "tokens", .rate_key = "tokens_per_second", .rate_unit = "tok/s"}, measures};
  Metrics metrics(other);
  metrics.step(a_step(4));
  metrics.summary({.status = "done",
                   .evaluated = {.last = {2, 7.4}, .best = {1, 2.7}},
                   .totals = {.count = 77, .training_seconds = 7}});
  const Json line = lines().at(0);
  EXPECT_EQ(line["perplexity"], 0.25);
  EXPECT_EQ(line["tokens_per_second"], 256.0);
  EXPECT_FALSE(line.contains("accuracy") || line.contains("samples_per_second"));
  const Json summary = Json::parse(read_file(directory_ + "/metrics.json"));
  EXPECT_EQ(summary["best_perplexity"], 2.7);
  EXPECT_EQ(summary["tokens"], 77);
  EXPECT_EQ(summary["tokens_per_second"], 11.0);
  EXPECT_EQ(epoch_line({.epoch = 1, .epochs = 2, .train = {1.5, 4.48}, .rate = 10}, other.naming),
            "Epoch [1/2] LR: 0.000000 | Loss (train): 1.500 | Perplexity (train): 4.5 | Throughput: 10.0 tok/s");
}

/// Evaluations have measures that steps do not have. A resumed run continues with them.
TEST_F(MetricsTest, EvaluationsHaveMeasuresOfTheirOwn) {
  const tasks::Measure measures[] = {tasks::loss_measure(), {.key = "rouge_l", .unit = "", .greater_is_better = true}};
  Metrics::Options other = options();
  other.naming = {
      std::span(measures).first(1), {.name = "tokens", .rate_key = "tokens_per_second", .rate_unit = ""}, measures};
  {
    Metrics metrics(other);
    metrics.step({.step = 3, .measures = {1.5}});
    metrics.evaluation({.step = 3, .measures = {1.25, 0.75}, .average_measures = {1.5, 0.5}});
    metrics.evaluation({.step = 4, .measures = {1, 0.5}});
  }
  EXPECT_FALSE(lines().at(0).contains("rouge_l"));
  EXPECT_EQ(lines().at(1)["rouge_l"], 0.75);
  EXPECT_EQ(lines().at(1)["ema_rouge_l"], 0.5);
  other.resume_step = 4;
  const History history = Metrics(other).history();
  EXPECT_EQ(history.evaluated.last, (std::vector<double>{1, 0.5}));
  EXPECT_EQ(history.evaluated.best, (std::vector<double>{1, 0.75}));
  EXPECT_EQ(history.evaluated_averages.last, (std::vector<double>{1.5, 0.5}));
}

/// What is processed, and what counts in the loss: for example, the prompts of conversations do not.
TEST_F(MetricsTest, TheSpeedIsOfAllThatIsProcessed) {
  const tasks::Measure measures[] = {tasks::loss_measure()};
  Metrics::Options other = options();
  other.naming = {measures,
                  {.name = "tokens", .rate_key = "tokens_per_second", .rate_unit = "tokens/s", .counts_part = true},
                  measures};
  StepRecord step{.step = 4, .epoch = 1, .measures = {1.5}, .rate = 512, .loss_rate = 132};
  step.totals = {.count = 264, .processed = 1024, .training_seconds = 2, .run_seconds = 3};
  {
    Metrics metrics(other);
    metrics.step(step);
    metrics.epoch({.step = 4, .epoch = 1, .train = {1.5}, .rate = 512, .loss_rate = 132, .totals = step.totals});
    metrics.evaluation({.step = 4, .measures = {1.5}, .rate = 90, .loss_rate = 30, .totals = step.totals});
    metrics.summary({.status = "done", .totals = step.totals});
  }
  const double expected[][2] = {{512, 132}, {512, 132}, {90, 30}};
  for (std::size_t i = 0; i < 3; ++i) {
    const Json line = lines().at(i);
    EXPECT_EQ(line["tokens_per_second"], expected[i][0]) << line;
    EXPECT_EQ(line["loss_tokens_per_second"], expected[i][1]) << line;
    EXPECT_EQ(line["processed_tokens"], 1024) << line;
    EXPECT_EQ(line["trained_tokens"], 264) << line;
  }
  const Json summary = Json::parse(read_file(directory_ + "/metrics.json"));
  EXPECT_EQ(summary["tokens"], 264);
  EXPECT_EQ(summary["processed_tokens"], 1024);
  EXPECT_EQ(summary["tokens_per_second"], 512.0);
  EXPECT_EQ(summary["loss_tokens_per_second"], 132.0);
  EXPECT_NE(epoch_line({.epoch = 1, .epochs = 1, .train = {1.5}, .rate = 512, .loss_rate = 132}, other.naming)
                .find("512.0 tokens/s (132.0 in the loss)"),
            std::string::npos);
  // A resumed run continues both counts. An earlier release recorded only one.
  other.resume_step = 4;
  EXPECT_EQ(Metrics(other).history().totals.processed, 1024);
  std::string old = read_file(directory_ + "/metrics.jsonl");
  for (const std::string key = "\"processed_tokens\":1024,"; old.find(key) != std::string::npos;)
    old.erase(old.find(key), key.size());
  replace_file(directory_ + "/metrics.jsonl", old);
  EXPECT_EQ(Metrics(other).history().totals.processed, 264);
}

TEST(EpochLine, ShowsWhatADivergedRunReports) {
  const EpochRecord record{.epoch = 1, .epochs = 1, .learning_rate = 1e30, .train = {-NAN, 0.1}};
  EXPECT_EQ(epoch_line(record, naming()),
            "Epoch [1/1] LR: 1e+30 | Loss (train): nan | Accuracy (train): 10.00% | Throughput: 0.0 img/s");
}

TEST(Progress, TextFitsTheTerminal) {
  EXPECT_EQ(progress_text("training", 10, 40, 2.5, "loss 1.2", 80),
            "training [========>                       ] 10/40  2.5 it/s  ETA 00:12  loss 1.2");
  EXPECT_EQ(progress_text("training", 40, 40, 2.5, "", 60),
            "training [======================] 40/40  2.5 it/s  ETA 00:00");
  EXPECT_EQ(progress_text("training", 1, 9000, 2, "", 30), "training 1/9000  2.0 it/s  ETA");
  EXPECT_EQ(progress_text("evaluation", 7, 9000, 2, "", 0), "evaluation 7/9000  2.0 it/s  ETA 1:14:57");  // in a log
  for (int width = 1; width < 200; ++width) {
    EXPECT_LE(progress_text("training", 7, 9000, 0.3, "loss 1.2345", width).size(), static_cast<std::size_t>(width));
  }
}

TEST(Progress, FormatsTimesAndLargeTotals) {
  EXPECT_NE(progress_text("t", 0, 7322, 1, "", 80).find("ETA 2:02:02"), std::string::npos);
  EXPECT_NE(progress_text("t", 0, 100, 0, "", 80).find("ETA --:--"), std::string::npos);
  EXPECT_NE(progress_text("verify", 50'000'000, 100'000'000, 1e7, "", 80).find("] 50%  10 MB/s  ETA 00:05"),
            std::string::npos);
  EXPECT_NE(progress_text("t", 3, 0, 1, "", 80).find("3/0"), std::string::npos);
}

TEST(Progress, ShowsNothingWithoutATerminal) {
  ::testing::internal::CaptureStderr();
  {
    ProgressBar bar("training", 10, true);
    bar.update(1, "");
    bar.update(10, "");
  }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

/// Stopped after step 5, resumed at 3.
int write_interrupted_run(int, char** argv) {
  const std::string directory = argv[2];
  {
    Metrics metrics({.directory = directory,
                     .naming = naming(),
                     .configuration = "run: {name: \"a\"}\nprecision: fp32\n",
                     .hyperparameters = {{"optimizer.kind", "sgd"},
                                         {"optimizer.learning_rate", "0.1"},
                                         {"optimizer.nesterov", "false"},
                                         {"data.augment", "[crop, flip]"}}});
    write_run(metrics, 1, 5);
  }
  Metrics metrics({.directory = directory,
                   .naming = naming(),
                   .resume_step = 3,
                   .configuration = "run: {name: b}\n",
                   .hyperparameters = {{"optimizer.kind", "adamw"}}});
  write_run(metrics, 4, 6);
  return 0;
}

const test::Role role("write-run", write_interrupted_run);

}  // namespace
}  // namespace lockstep::run
