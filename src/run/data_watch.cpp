#include "run/data_watch.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/numbers.h"

namespace lockstep::run {
namespace {

constexpr double kNoticeable = 0.05;     // of the time of steps
constexpr double kLeastSeconds = 1;      // of steps, the minimum for a judgement
constexpr double kIntervalSeconds = 60;  // between reports
constexpr double kNearlyAll = 0.8;       // of the readers

/// "a, b or c"
std::string any_of(const std::vector<std::string>& list) {
  std::string text;
  for (std::size_t i = 0; i < list.size(); ++i) text += (i == 0 ? "" : i + 1 < list.size() ? ", " : " or ") + list[i];
  return text;
}

/// If readers are idle, they wait for a free slot in the buffers, which data.prefetch provides.
std::string advice(double busy, const DataSource& source) {
  if (busy < kNearlyAll * source.readers) return "a larger data.prefetch";
  std::vector<std::string> list = {source.readers < source.cores ? "more readers" : "more cores per rank"};
  list.insert(list.end(), source.faster.begin(), source.faster.end());
  return any_of(list);
}

double wait_share(const DataUsage& usage) { return usage.seconds > 0 ? usage.wait_seconds / usage.seconds : 0; }

/// The usage on the rank that waits most.
DataUsage slowest(const std::vector<DataUsage>& ranks) {
  const auto less = [](const DataUsage& a, const DataUsage& b) { return wait_share(a) < wait_share(b); };
  return ranks.empty() ? DataUsage{} : *std::max_element(ranks.begin(), ranks.end(), less);
}

}  // namespace

DataUsage operator-(const DataUsage& a, const DataUsage& b) {
  return {.seconds = a.seconds - b.seconds,
          .wait_seconds = a.wait_seconds - b.wait_seconds,
          .busy_seconds = a.busy_seconds - b.busy_seconds,
          .read_seconds = a.read_seconds - b.read_seconds,
          .n_samples = a.n_samples - b.n_samples};
}

DataFigures figures_of(const DataUsage& usage, const DataSource& source) {
  DataFigures figures{.wait_share = wait_share(usage)};
  // Readers also work between steps, which does not count as time of steps.
  if (usage.seconds > 0) figures.busy_readers = std::min<double>(source.readers, usage.busy_seconds / usage.seconds);
  if (usage.read_seconds > 0) figures.rate_per_reader = usage.n_samples / usage.read_seconds;
  return figures;
}

std::string data_report(const DataUsage& usage, const DataSource& source) {
  const DataFigures figures = figures_of(usage, source);
  if (usage.seconds < kLeastSeconds || figures.wait_share < kNoticeable) return "";
  return fmt::format("data: {:.0f} % of the time; {:.0f} of {} reader{} busy, {} {}/s per reader; {} would help",
                     100 * figures.wait_share, figures.busy_readers, source.readers, source.readers == 1 ? "" : "s",
                     with_commas(figures.rate_per_reader), source.samples, advice(figures.busy_readers, source));
}

bool DataWatch::is_due(Clock::time_point now) {
  if (now - last_ < std::chrono::duration<double>(kIntervalSeconds)) return false;
  last_ = now;
  return true;
}

void DataWatch::update(std::span<const DataUsage> totals) {
  totals_.assign(totals.begin(), totals.end());
  reported_.resize(totals_.size());
}

std::string DataWatch::report() {
  std::vector<DataUsage> since;
  for (std::size_t rank = 0; rank < totals_.size(); ++rank) since.push_back(totals_[rank] - reported_[rank]);
  reported_ = totals_;
  return data_report(slowest(since), source_);
}

std::string DataWatch::summary() const { return data_report(slowest(totals_), source_); }
DataFigures DataWatch::figures() const { return figures_of(slowest(totals_), source_); }

std::optional<SlowRank> find_slow_rank(std::span<const double> waits, double limit) {
  if (waits.size() < 2) return std::nullopt;
  const auto slowest = std::min_element(waits.begin(), waits.end());
  double sum = 0;
  for (const double wait : waits) sum += wait - *slowest;
  const double waited_for = sum / static_cast<double>(waits.size() - 1);
  if (waited_for <= limit) return std::nullopt;
  return SlowRank{.rank = static_cast<int>(slowest - waits.begin()), .waited_for = waited_for};
}

}  // namespace lockstep::run
