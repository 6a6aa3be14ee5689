#include "scaling/measurement.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <map>
#include <numbers>
#include <sstream>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "base/printable.h"
#include "lockstep/error.h"
#include "run/metrics_file.h"
#include "scaling/study.h"

namespace lockstep::scaling {
namespace {

using Json = nlohmann::json;
using Event = nlohmann::ordered_json;  // of metrics.jsonl
using run::number_in;
namespace fs = std::filesystem;

constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 30;
constexpr double kMebibyte = 1 << 20;

std::vector<double> numbers_in(const Json& object, const std::string& key) {
  std::vector<double> numbers;
  for (const Json& value : object.value(key, Json::array()))
    numbers.push_back(value.is_number() ? value.get<double>() : kUnknown);
  return numbers;
}

/// The memory in MiB that a file of RUN/usage recorded between `begin` and `end`: that of the first GPU or rank in it.
/// `column`: of the memory. The first ones are time_unix and the number of the GPU or rank.
std::vector<double> used_mib(const std::string& file, std::size_t column, double begin, double end) {
  std::map<double, std::vector<double>> used;
  std::istringstream lines(fs::exists(file) ? read_file(file, kMaxBytes) : "");
  for (std::string line; std::getline(lines, line) && !lines.eof();) {
    std::vector<double> columns;
    std::istringstream fields(line);
    for (std::string field; std::getline(fields, field, ',');) {
      double value = kUnknown;
      std::from_chars(field.data(), field.data() + field.size(), value);
      columns.push_back(value);
    }
    if (columns.size() > column && columns[0] >= begin && columns[0] <= end && std::isfinite(columns[column]))
      used[columns[1]].push_back(std::round(columns[column]));
  }
  return used.empty() ? std::vector<double>() : used.begin()->second;
}

/// A figure of each of the steps.
std::vector<double> of_steps(std::span<const Event> steps, const std::string& key) {
  std::vector<double> values;
  for (const Event& step : steps) values.push_back(number_in(step, key));
  return values;
}

/// A figure of each rank in each of the steps.
std::vector<double> of_ranks(std::span<const Event> steps, const std::string& key) {
  std::vector<double> values;
  for (const Event& step : steps) std::ranges::copy(run::of_ranks(step, key), std::back_inserter(values));
  return values;
}

void measure_memory(const std::string& run, std::span<const Event> events, const Study& study, Measurement& result) {
  const auto n_before = static_cast<std::size_t>(study.warmup_steps);
  std::vector<double> logged, used;
  for (const Event& step : events.subspan(n_before))
    if (const auto of_ranks = run::of_ranks(step, "memory_bytes"); !of_ranks.empty())
      logged.push_back(std::round(of_ranks.front() / kMebibyte));
  const double begin = study.steps > 0 ? number_in(events[std::max<std::size_t>(n_before, 1) - 1], "time_unix") : 0;
  const double end = study.steps > 0 ? number_in(events.back(), "time_unix") : INFINITY;
  const std::vector<std::string> hosts = run::hosts_of(events.back());
  for (const auto& [kind, column] : {std::pair("/usage/gpu_memory_log_", 2), {"/usage/process_log_", 4}})
    for (const char* ending : {".csv", "_node0.csv"})
      if (used.empty() && !hosts.empty()) used = used_mib(run + kind + hosts.front() + ending, column, begin, end);
  // A case of less than half a second has no line there. In this case, the steps contain the peak memory so far.
  if (used.empty()) used = logged;
  const double peak = std::max(figure_of(logged).maximum, figure_of(used).maximum);
  result.memory_peak_bytes = kMebibyte * (std::isnan(peak) ? figure_of(used).maximum : peak);
  result.memory_mean_bytes = kMebibyte * figure_of(used).mean;
  result.memory_mode_bytes = kMebibyte * mode_of(used);
}

void measure_epoch(const Event& epoch, Measurement& result) {
  result.epoch_rate = number_in(epoch, result.unit + "_per_second");
  result.epoch_loss = number_in(epoch, "loss");
  result.epoch_accuracy = number_in(epoch, "accuracy");
  result.validation_loss = number_in(epoch, "validation_loss");
  result.validation_accuracy = number_in(epoch, "validation_accuracy");
}

}  // namespace

Measurement measure(const std::string& run, const Study& study) {
  const std::string path = run::metrics_path(run), summary = run + "/metrics.json";
  std::vector<Event> events;
  Event epoch;
  run::MetricsReader reader(path);
  reader.require_open();
  while (reader.next()) {
    Event event = reader.event();
    const std::string kind = run::text_in(event, "event");
    if (kind == "step") events.push_back(std::move(event));
    if (kind == "epoch") epoch = std::move(event);
  }
  require(study.steps > 0 ? std::ssize(events) == study.steps : !events.empty(), ErrorCode::study_damaged,
          "{}: expected {} steps, found {}", path, study.steps > 0 ? std::to_string(study.steps) : "some",
          events.size());
  require(study.epochs == 0 || number_in(epoch, "epoch") == study.epochs, ErrorCode::study_damaged,
          "{}: expected {} epochs, found {}", path, study.epochs, number_in(epoch, "epoch"));
  Measurement result;
  const Json totals = parse_json(read_file(summary, kMaxBytes), summary, ErrorCode::study_damaged);
  result.build = build_text(totals.value("versions", Json::object()).dump());
  result.exchanged_bytes = number_in(totals, "exchanged_bytes");
  result.buckets = number_in(totals, "buckets");
  result.unit = run::unit_of(events.front());
  require(!result.unit.empty() && events.front().contains("loss"), ErrorCode::study_damaged,
          "{}: its steps have no loss or no speed", path);
  result.ranks = static_cast<int>(number_in(events.front(), "ranks"));
  if (number_in(events.back(), "ranks") != result.ranks) result.ranks = 0;
  result.step_seconds = of_steps(events, "step_seconds");
  result.step_counts = of_steps(events, result.unit + "_per_second");
  std::ranges::transform(result.step_counts, result.step_seconds, result.step_counts.begin(),
                         [](double rate, double seconds) { return std::round(rate * seconds); });
  result.step_losses = of_steps(events, "loss");
  if (events.front().contains("accuracy")) result.step_accuracies = of_steps(events, "accuracy");
  const auto measured = std::span(events).subspan(static_cast<std::size_t>(study.warmup_steps));
  const auto mean_of_ranks = [&](const char* key) { return figure_of(of_ranks(measured, key)).mean; };
  const auto mean = [&](const char* key) { return figure_of(of_steps(measured, key)).mean; };
  result.utilisation = mean_of_ranks("utilisation");
  result.model_flops_rate = mean("model_flops_rate");
  result.model_flops_utilization = mean("model_flops_utilization");
  result.exposed_communication_seconds = mean_of_ranks("exposed_communication_seconds");
  result.data_wait_seconds = mean_of_ranks("data_wait_seconds");
  result.exchange_seconds = mean("exchange_seconds");
  result.training_seconds = number_in(events.back(), "training_seconds");
  result.global_batch = number_in(events.front(), "samples") / number_in(events.front(), "step");
  result.has_gpus = !run::of_ranks(events.back(), "host_memory_bytes").empty();
  if (study.steps == 0 && !epoch.empty()) measure_epoch(epoch, result);
  measure_memory(run, events, study, result);
  std::map<std::string, int> ranks_of;
  for (const std::string& host : run::hosts_of(events.back()))
    if (!host.empty()) ++ranks_of[host];
  for (const auto& [name, ranks] : ranks_of) result.hosts.push_back({.name = name, .machine = "", .ranks = ranks});
  return result;
}

std::map<std::string, Machine> machines_of(const std::vector<Host>& hosts) {
  std::map<std::string, Machine> machines;
  for (const Host& host : hosts) {
    Machine& machine = machines[host.owner()];
    ++machine.hosts;
    machine.ranks += host.ranks;
    machine.cores = std::max(machine.cores, host.cores);
  }
  return machines;
}

namespace {

constexpr std::pair<const char*, double Measurement::*> kFigures[] = {
    {"started_unix", &Measurement::started_unix},
    {"seconds", &Measurement::seconds},
    {"training_seconds", &Measurement::training_seconds},
    {"epoch_rate", &Measurement::epoch_rate},
    {"epoch_loss", &Measurement::epoch_loss},
    {"epoch_accuracy", &Measurement::epoch_accuracy},
    {"validation_loss", &Measurement::validation_loss},
    {"validation_accuracy", &Measurement::validation_accuracy},
    {"global_batch", &Measurement::global_batch},
    {"memory_peak_bytes", &Measurement::memory_peak_bytes},
    {"memory_mean_bytes", &Measurement::memory_mean_bytes},
    {"memory_mode_bytes", &Measurement::memory_mode_bytes},
    {"utilisation", &Measurement::utilisation},
    {"model_flops_rate", &Measurement::model_flops_rate},
    {"model_flops_utilization", &Measurement::model_flops_utilization},
    {"exposed_communication_seconds", &Measurement::exposed_communication_seconds},
    {"data_wait_seconds", &Measurement::data_wait_seconds},
    {"exchange_seconds", &Measurement::exchange_seconds},
    {"exchanged_bytes", &Measurement::exchanged_bytes},
    {"buckets", &Measurement::buckets}};
constexpr std::pair<const char*, std::vector<double> Measurement::*> kFiguresOfSteps[] = {
    {"step_seconds", &Measurement::step_seconds},
    {"step_counts", &Measurement::step_counts},
    {"step_losses", &Measurement::step_losses},
    {"step_accuracies", &Measurement::step_accuracies}};

}  // namespace

nlohmann::ordered_json json_of(const Measurement& m) {
  nlohmann::ordered_json hosts = nlohmann::ordered_json::array();
  for (const Host& host : m.hosts)
    hosts.push_back({{"name", host.name},
                     {"machine", host.machine},
                     {"ranks", host.ranks},
                     {"cores", host.cores},
                     {"busy_cores_of_others", host.busy}});
  nlohmann::ordered_json object{{"format", 1},           {"build", m.build},           {"ranks", m.ranks},
                                {"hosts", hosts},        {"other_jobs", m.other_jobs}, {"unit", m.unit},
                                {"has_gpus", m.has_gpus}};
  for (const auto& [key, member] : kFigures) object[key] = m.*member;
  for (const auto& [key, member] : kFiguresOfSteps) object[key] = m.*member;
  return object;
}

Measurement measurement_in(const std::string& text, const std::string& path) {
  const Json object = parse_json(text, path, ErrorCode::study_damaged);
  require(object.is_object() && object.value("format", Json()) == 1, ErrorCode::study_damaged,
          "{} is not the result of a case in a format that this program reads; remove the file to repeat the case",
          path);
  Measurement m;
  try {
    m.build = object.at("build");
    m.ranks = object.at("ranks");
    m.unit = object.at("unit");
    m.has_gpus = object.value("has_gpus", false);
    for (const Json& host : object.at("hosts"))
      m.hosts.push_back({.name = host.at("name"),
                         .machine = host.at("machine"),
                         .ranks = host.at("ranks"),
                         .cores = host.at("cores"),
                         .busy = number_in(host, "busy_cores_of_others")});
    m.other_jobs = object.at("other_jobs").get<std::vector<std::string>>();
    for (const auto& [key, member] : kFigures) m.*member = number_in(object, key);
    for (const auto& [key, member] : kFiguresOfSteps) m.*member = numbers_in(object, key);
  } catch (const Json::exception& error) {
    fail(ErrorCode::study_damaged, "{} is damaged: {}; remove the file to repeat the case", path,
         printable(error.what()));
  }
  require(!m.step_seconds.empty() && m.step_counts.size() == m.step_seconds.size() &&
              m.step_losses.size() == m.step_seconds.size(),
          ErrorCode::study_damaged,
          "{} is damaged: it has {} times of steps and {} counts; remove the file to repeat "
          "the case",
          path, m.step_seconds.size(), m.step_counts.size());
  return m;
}

namespace {

/// P(|T| < t) for whole degrees of freedom (Abramowitz and Stegun, 26.7.3 and 26.7.4).
double central_probability(double t, int degrees) {
  const double theta = std::atan(t / std::sqrt(static_cast<double>(degrees))), cosine = std::cos(theta);
  const bool is_odd = degrees % 2 == 1;
  double term = is_odd ? cosine : 1, sum = degrees > 1 ? term : 0;
  for (int i = is_odd ? 3 : 2; i <= degrees - 2; i += 2) {
    term *= cosine * cosine * (i - 1) / i;
    sum += term;
  }
  return is_odd ? 2 / std::numbers::pi * (theta + std::sin(theta) * sum) : std::sin(theta) * sum;
}

double squared_standard_error(const Figure& figure) { return figure.deviation * figure.deviation / figure.n; }

}  // namespace

Figure figure_of(std::span<const double> values) {
  std::vector<double> finite;
  std::ranges::copy_if(values, std::back_inserter(finite), [](double value) { return std::isfinite(value); });
  Figure figure;
  if (finite.empty()) return figure;
  figure.n = static_cast<int>(finite.size());
  figure.minimum = *std::ranges::min_element(finite);
  figure.maximum = *std::ranges::max_element(finite);
  figure.mean = 0;
  for (const double value : finite) figure.mean += value / figure.n;
  if (figure.n < 2) return figure;
  double squares = 0;
  for (const double value : finite) squares += (value - figure.mean) * (value - figure.mean);
  figure.deviation = std::sqrt(squares / (figure.n - 1));
  if (figure.n < kLeastForInterval) return figure;
  figure.half_width = student_t(figure.n - 1) * std::sqrt(squared_standard_error(figure));
  return figure;
}

double student_t(double degrees_of_freedom) {
  constexpr int kMostDegrees = 10000;  // from here on, the normal distribution differs only in the fifth digit
  const int degrees = static_cast<int>(std::clamp(std::floor(degrees_of_freedom), 1.0, double{kMostDegrees}));
  double low = 1.9, high = 12.8;  // the quantile is 12.706 for one degree of freedom, and falls to 1.960
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (central_probability(middle, degrees) < 0.95 ? low : high) = middle;
  }
  // The last bits of sines and arc tangents differ between processors, but reports must not differ.
  constexpr double kDigits = 1e9;
  return std::round((low + high) / 2 * kDigits) / kDigits;
}

Figure ratio_of(const Figure& numerator, const Figure& denominator) {
  Figure ratio;
  if (numerator.n == 0 || denominator.n == 0 || denominator.mean == 0) return ratio;
  ratio.n = numerator.n;
  ratio.mean = numerator.mean / denominator.mean;
  ratio.minimum = numerator.minimum / denominator.mean;
  ratio.maximum = numerator.maximum / denominator.mean;
  ratio.deviation = numerator.deviation / denominator.mean;
  if (std::min(numerator.n, denominator.n) < kLeastForInterval) return ratio;
  const double a = squared_standard_error(numerator) / (numerator.mean * numerator.mean);
  const double b = squared_standard_error(denominator) / (denominator.mean * denominator.mean);
  const double variances = a + b;
  ratio.half_width = 0;
  if (variances == 0) return ratio;
  const double degrees = variances * variances / (a * a / (numerator.n - 1) + b * b / (denominator.n - 1));
  ratio.half_width = student_t(degrees) * ratio.mean * std::sqrt(variances);
  return ratio;
}

Figure scaled(const Figure& figure, double factor) {
  Figure result = figure;
  for (double Figure::*member :
       {&Figure::mean, &Figure::minimum, &Figure::maximum, &Figure::deviation, &Figure::half_width})
    result.*member *= factor;
  return result;
}

Figure inverted(const Figure& figure) {
  const double mean = 1 / figure.mean;
  return {.n = figure.n,
          .mean = mean,
          .minimum = 1 / figure.maximum,
          .maximum = 1 / figure.minimum,
          .deviation = figure.deviation * mean * mean,
          .half_width = figure.half_width * mean * mean};
}

double mode_of(std::span<const double> values) {
  std::map<double, int> counts;
  for (const double value : values)
    if (std::isfinite(value)) ++counts[value];
  double mode = kUnknown;
  int most = 0;
  for (const auto& [value, count] : counts) {
    if (count <= most) continue;
    most = count;
    mode = value;
  }
  return mode;
}

bool still_falls(std::span<const double> values) {
  constexpr std::size_t kLeast = 6;
  constexpr double kPart = 0.1, kStandardErrors = 3;
  if (values.size() < kLeast) return false;
  const std::size_t third = values.size() / 3;
  const Figure first = figure_of(values.first(third)), rest = figure_of(values.subspan(third));
  const double difference = first.mean - rest.mean;
  const double error = std::sqrt(squared_standard_error(first) + squared_standard_error(rest));
  return difference > kPart * rest.mean && difference > kStandardErrors * error;
}

}  // namespace lockstep::scaling
