// Which cases are averaged, the figures of a study, and each format of its report (test/scaling/golden).
#include "scaling/report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "base/file.h"
#include "scaling/results.h"

namespace lockstep::scaling {
namespace {

constexpr const char* kBuild = "0.1.0 (1d7fb48), g++ 12.2.0, libraries 5f0c2a91";

Study a_study() {
  Study study;
  study.directory = "/studies/a";
  study.batch = 64;
  study.steps = 10;
  study.warmup_steps = 2;
  study.repeats = 2;
  study.build = kBuild;
  study.cases = {{.name = "ranks-0002-repeat-1", .ranks = 2, .nodes = 1, .repeat = 1},
                 {.name = "ranks-0001-repeat-1", .ranks = 1, .nodes = 1, .repeat = 1},
                 {.name = "ranks-0001-repeat-2", .ranks = 1, .nodes = 1, .repeat = 2},
                 {.name = "ranks-0002-repeat-2", .ranks = 2, .nodes = 1, .repeat = 2}};
  return study;
}

/// A case whose steps take `step_seconds`, after a warm-up of two slow steps.
Measurement measured(int ranks, double step_seconds) {
  Measurement m;
  m.build = kBuild;
  m.ranks = ranks;
  m.seconds = 12;
  m.hosts = {{.name = "node1", .machine = "m", .ranks = ranks, .cores = 8, .busy = 0.125}};
  m.unit = "samples";
  m.step_seconds.assign(10, step_seconds);
  m.step_seconds[0] = m.step_seconds[1] = 5;
  m.step_counts.assign(10, 64);
  m.step_losses.assign(10, 2.5);
  m.step_accuracies.assign(10, 0.25);
  m.memory_peak_bytes = 100 << 20;
  m.memory_mean_bytes = 75 << 20;
  m.memory_mode_bytes = 50 << 20;
  m.utilisation = 0.75;
  m.model_flops_utilization = 0.5;
  m.exposed_communication_seconds = ranks == 1 ? 0 : 0.125;
  m.data_wait_seconds = 0.0625;
  return m;
}

/// 1 s per step on one rank, 0.5 and 0.75 s on two.
std::vector<CaseResult> four_cases(const Study& study) {
  return {{.of = study.cases[0], .measured = measured(2, 0.5)},
          {.of = study.cases[1], .measured = measured(1, 1)},
          {.of = study.cases[2], .measured = measured(1, 1)},
          {.of = study.cases[3], .measured = measured(2, 0.75)}};
}

/// A third repeat of each size, so that there are intervals: 0.625 s on two ranks.
Results results() {
  Study study = a_study();
  study.repeats = 3;
  study.cases.push_back({.name = "ranks-0001-repeat-3", .ranks = 1, .nodes = 1, .repeat = 3});
  study.cases.push_back({.name = "ranks-0002-repeat-3", .ranks = 2, .nodes = 1, .repeat = 3});
  std::vector<CaseResult> cases = four_cases(study);
  cases.push_back({.of = study.cases[4], .measured = measured(1, 1)});
  cases.push_back({.of = study.cases[5], .measured = measured(2, 0.625)});
  cases[5].measured->exposed_communication_seconds = 2;
  return results_of(study, cases, {});
}

TEST(ScalingResults, HaveSpeedupAndEfficiency) {
  const Results all = results();
  ASSERT_EQ(all.sizes.size(), 2U);
  EXPECT_EQ(all.baseline().ranks, 1);
  EXPECT_EQ(all.baseline().step_seconds.mean, 1);
  EXPECT_EQ(all.baseline().rate.mean, 64);
  EXPECT_EQ(all.baseline().speedup.mean, 1);
  EXPECT_EQ(all.baseline().speedup.half_width, 0);
  const SizeResult& two = all.sizes[1];
  EXPECT_EQ(two.n_averaged, 3);
  EXPECT_DOUBLE_EQ(two.step_seconds.mean, 0.625);
  EXPECT_DOUBLE_EQ(two.speedup.mean, (128 + 64 / 0.75 + 64 / 0.625) / 3 / 64);
  EXPECT_DOUBLE_EQ(two.efficiency.mean, two.speedup.mean / 2);
  EXPECT_TRUE(all.remarks.empty());
}

TEST(ScalingResults, OfTwoRepeatsHaveNoIntervals) {
  const Results all = results_of(a_study(), four_cases(a_study()), {});
  for (const SizeResult& size : all.sizes)
    for (const Figure& figure : {size.step_seconds, size.speedup, size.efficiency, size.model_flops_utilization}) {
      EXPECT_EQ(figure.n, 2);
      EXPECT_TRUE(std::isnan(figure.low()) && std::isnan(figure.high()));
    }
  ASSERT_EQ(all.remarks.size(), 1U);
  EXPECT_NE(all.remarks.front().find("--repeat 3"), std::string::npos);
  EXPECT_EQ(text_report(all).find(" to -"), std::string::npos);
}

TEST(ScalingResults, HaveNoIntervalsBelowZero) {
  const Figure exposed = results().sizes[1].exposed_communication_seconds;
  EXPECT_GT(exposed.half_width, exposed.mean);
  EXPECT_EQ(exposed.low(), 0);
  for (const std::string& report : {text_report(results()), csv_report(results()), json_report(results())})
    EXPECT_EQ(report.find(" -0."), std::string::npos) << report;
}

/// The only rejection of a case with this measurement.
std::string rejection_of(const Measurement& measurement, Reason reason) {
  const Study study = a_study();
  std::vector<CaseResult> cases = four_cases(study);
  cases[0].measured = measurement;
  const Results all = results_of(study, cases, {});
  const CaseResult& first = all.cases.front();
  EXPECT_EQ(first.rejections.size(), 1U);
  EXPECT_FALSE(first.is_averaged);
  EXPECT_EQ(all.sizes[1].n_averaged, 1);
  EXPECT_EQ(all.sizes[1].n_rejected, 1);
  EXPECT_DOUBLE_EQ(all.sizes[1].step_seconds.mean, 0.75);
  EXPECT_EQ(results_of(study, cases, {reason}).sizes[1].n_averaged, 2) << "accepted";
  if (first.rejections.size() != 1) return "";
  EXPECT_EQ(first.rejections.front().reason, reason);
  return first.rejections.front().text;
}

TEST(ScalingResults, LeaveOutCasesOfAnotherBuild) {
  Measurement other = measured(2, 0.5);
  other.build = "0.1.0 (2222222)";
  EXPECT_EQ(rejection_of(other, Reason::build), "it ran with another build: 0.1.0 (2222222)");
}

TEST(ScalingResults, LeaveOutCasesWithNeighbours) {
  Measurement busy = measured(2, 0.5), shared = measured(2, 0.5);
  busy.hosts.front().busy = 1.5;
  EXPECT_EQ(rejection_of(busy, Reason::neighbours), "other programs kept 1.5 cores of node1 busy");
  shared.other_jobs = {"17", "18"};
  EXPECT_EQ(rejection_of(shared, Reason::neighbours), "other jobs ran on its nodes: 17, 18");
}

TEST(ScalingResults, LeaveOutCasesWithAShortWarmup) {
  Measurement falling = measured(2, 0.5), few = measured(2, 0.5);
  falling.step_seconds = {5, 5, 2, 1.9, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5};
  EXPECT_NE(rejection_of(falling, Reason::warmup).find("still became faster"), std::string::npos);
  few.step_seconds.resize(6);
  few.step_counts.resize(6);
  EXPECT_EQ(rejection_of(few, Reason::warmup), "the warm-up left 4 steps to measure, and at least 5 are needed");
}

TEST(ScalingResults, SayWhenRanksSharedCores) {
  const Study study = a_study();
  std::vector<CaseResult> cases = four_cases(study);
  // Two nodes that are containers on one machine.
  cases[0].measured->hosts = {{.name = "node1", .machine = "m", .ranks = 1, .cores = 1},
                              {.name = "node2", .machine = "m", .ranks = 1, .cores = 1}};
  const Results all = results_of(study, cases, {});
  ASSERT_FALSE(all.remarks.empty());
  EXPECT_EQ(all.remarks.front(),
            "With 2 ranks, 2 of them on 2 nodes shared 1 core of one machine: this size measures these cores, and "
            "not how the program scales.");
  const auto first_remark = [&] { return results_of(study, cases, {}).remarks.front(); };
  cases[0].measured->hosts[1].machine = "other";
  EXPECT_EQ(first_remark().find("shared"), std::string::npos);
  // A rank alone in a container that may use part of a core is slow at every size, but shares the core with no other
  // rank.
  cases[0].measured->hosts[0].cores = 0.25;
  EXPECT_EQ(first_remark().find("shared"), std::string::npos);
}

TEST(ScalingResults, OfAnUnfinishedStudySaySo) {
  const Study study = a_study();
  std::vector<CaseResult> cases = four_cases(study);
  cases[1].measured.reset();
  cases[2].measured.reset();
  const Results all = results_of(study, cases, {});
  ASSERT_GE(all.remarks.size(), 2U);
  EXPECT_NE(all.remarks[0].find("2 of 4 cases are not finished"), std::string::npos);
  EXPECT_NE(all.remarks[1].find("There is no speedup"), std::string::npos);
  EXPECT_EQ(all.sizes[1].speedup.n, 0);
  EXPECT_EQ(baseline_text(all), "Baseline (Single rank): not measured");
}

/// Compares with a file of test/scaling/golden. If they differ, the report is written to a file, which can replace the
/// golden one after a review.
void expect_golden(const std::string& report, const std::string& name) {
  const std::string golden = "test/scaling/golden/" + name, found = testing::TempDir() + "/" + name;
  if (std::filesystem::exists(golden) && read_file(golden) == report) return;
  replace_file(found, report);
  ADD_FAILURE() << golden << " differs from " << found;
}

/// With a cost model, and predictions for a size that was run later and for one that was not.
Results predicted_results() {
  Results all = results();
  all.model = CostModel{.fixed_seconds = 0.125,
                        .sample_seconds = 0.0625,
                        .rank_hop_seconds = 16e-6,
                        .rank_byte_seconds = 0.25e-9,
                        .hidden_part = 0.5,
                        .straggler_part = 0.0625,
                        .data_seconds = 0.03125,
                        .error = 0.0625,
                        .spread = 0.03125,
                        .has_exchange_times = true,
                        .exchanged = {.bytes = 1 << 20, .buckets = 3},
                        .cores = 4,
                        .fitted = {{.ranks = 1, .samples_per_rank = 16}}};
  for (const int ranks : {2, 8})
    all.predictions.push_back(
        {{.size = {.ranks = ranks, .samples_per_rank = 16.0 / ranks, .sharing = std::max(1.0, ranks / 4.0)},
          .compute_seconds = 1.0 / ranks,
          .exposed_seconds = 0.0625,
          .data_seconds = 0.03125,
          .low = 0.75 / ranks,
          .high = 1.5 / ranks},
         1.75e9,
         {1}});
  return all;
}

TEST(ScalingReport, NamesGpusAndTimesWholeTrainings) {
  Study study = a_study();
  study.steps = study.warmup_steps = 0;
  study.epochs = 3;
  study.cases.push_back({.name = "ranks-0008-repeat-1", .ranks = 8, .nodes = 2, .repeat = 1});
  std::vector<CaseResult> cases = four_cases(study);
  cases.push_back({.of = study.cases[4], .measured = measured(8, 0.25)});
  for (CaseResult& each : cases) {
    each.measured->has_gpus = true;
    each.measured->training_seconds = 362.5 / each.of.ranks + each.of.repeat;
    each.measured->epoch_rate = 64.0 * each.of.ranks;
    each.measured->memory_mean_bytes = (100 << 20) / each.of.ranks;
  }
  const Results all = results_of(study, cases, {});
  EXPECT_EQ(baseline_text(all), "Baseline (Single GPU): 364.00 seconds, the mean of 2 cases");
  EXPECT_EQ(name_of(all.sizes[1], all), "Multi-GPU (2 GPUs, 1 node)");
  EXPECT_EQ(name_of(all.sizes[2], all), "Multi-node (8 GPUs, 2 nodes)");
  EXPECT_DOUBLE_EQ(all.sizes[1].speedup.mean, 364 / 182.75);
  EXPECT_DOUBLE_EQ(all.sizes[1].efficiency.mean, 364 / 182.75 / 2);
  EXPECT_DOUBLE_EQ(all.sizes[1].speedup.minimum, 364 / 183.25);
  EXPECT_DOUBLE_EQ(all.sizes[1].rate_scaling.mean, 2);
  EXPECT_DOUBLE_EQ(all.sizes[2].memory_scaling.mean, 0.125);
  const Table figures = figure_table(all, Shown::figures);
  EXPECT_EQ(figures.header[3], "GPU 0 peak, MiB");
  EXPECT_EQ(figures.rows[2].front(), "Multi-node (8 GPUs, 2 nodes)");
  EXPECT_NE(text_report(all).find("average, s "), std::string::npos);
}

TEST(ScalingReport, AsText) { expect_golden(text_report(predicted_results()), "report.txt"); }
TEST(ScalingReport, AsMarkdown) { expect_golden(markdown_report(predicted_results()), "report.markdown"); }
TEST(ScalingReport, AsCsv) { expect_golden(csv_report(predicted_results()), "report.csv"); }
TEST(ScalingReport, AsJson) { expect_golden(json_report(predicted_results()), "report.json"); }
TEST(ScalingReport, AsLatex) { expect_golden(latex_report(predicted_results()), "report.tex"); }

TEST(ScalingReport, HasNumbersInFixedNotation) {
  EXPECT_EQ(number_text(8.312e-5), "0.00008312");
  EXPECT_EQ(number_text(-8.312e-5), "-0.00008312");
  EXPECT_EQ(number_text(3e-6), "0.000003");
  EXPECT_EQ(number_text(99.996e-6), "0.0001");
  EXPECT_EQ(number_text(0.0001234), "0.0001234");
  EXPECT_EQ(number_text(0), "0");
  EXPECT_EQ(number_text(0.5), "0.5");
  EXPECT_EQ(number_text(99.994), "99.99");
  EXPECT_EQ(number_text(1234.6), "1235");
  EXPECT_EQ(number_text(3e-10), "3e-10");
  EXPECT_EQ(number_text(2e7), "2e+07");
  EXPECT_EQ(number_text(std::numeric_limits<double>::infinity()), "-");
}

TEST(ScalingReport, WithoutPredictionsHasNoEmptyTables) {
  for (const std::string& report : {text_report(results()), markdown_report(results()), latex_report(results())}) {
    EXPECT_EQ(report.find("redictions"), std::string::npos) << report;
    EXPECT_EQ(report.find("PREDICTIONS"), std::string::npos) << report;
    EXPECT_EQ(report.find("ost model"), std::string::npos) << report;
  }
}

}  // namespace
}  // namespace lockstep::scaling
