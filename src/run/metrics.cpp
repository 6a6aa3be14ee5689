#include "run/metrics.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <cctype>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <utility>

#include "base/clock.h"
#include "base/file.h"
#include "base/numbers.h"
#include "base/printable.h"
#include "base/utf8.h"
#include "lockstep/error.h"
#include "lockstep/log.h"
#include "run/metrics_file.h"
#include "run/tensorboard.h"

namespace lockstep::run {
namespace {

// The library writes non-finite numbers as null.
using Json = nlohmann::ordered_json;

/// Adds the totals to an event, or reads them from an event. Events of earlier releases have none.
void add(Json& object, const Totals& totals, const tasks::CountUnit& unit) {
  if (unit.counts_part) object["processed_" + unit.name] = std::llround(totals.processed);
  object.update({{"skipped_steps", totals.skipped_steps},
                 {"trained_" + unit.name, std::llround(totals.count)},
                 {"training_seconds", totals.training_seconds},
                 {"run_seconds", totals.run_seconds}});
}
std::optional<Totals> totals_in(const Json& object, const tasks::CountUnit& unit) {
  const double skipped = number_in(object, "skipped_steps"), count = number_in(object, "trained_" + unit.name);
  const double processed = number_in(object, "processed_" + unit.name);
  const Totals totals{.count = count,
                      .processed = std::isfinite(processed) ? processed : count,
                      .training_seconds = number_in(object, "training_seconds"),
                      .run_seconds = number_in(object, "run_seconds"),
                      .skipped_steps = static_cast<std::int64_t>(skipped)};
  if (!std::isfinite(totals.count + totals.training_seconds + totals.run_seconds + skipped)) return std::nullopt;
  return totals;
}

void add_rates(Json& object, const tasks::CountUnit& unit, double rate, double loss_rate) {
  object[unit.rate_key] = rate;
  if (unit.counts_part) object[unit.loss_rate_key()] = loss_rate;
}

/// Events are in chronological order, except for checkpoints: they are recorded when they have been written, some steps
/// later.
void note(const Json& object, const Naming& naming, History& history) {
  const Json event = object.value("event", Json());
  const auto read = [&](std::span<const tasks::Measure> which, std::string_view prefix = {}) {
    std::vector<double> measures;
    for (const tasks::Measure& measure : which)
      measures.push_back(number_in(object, std::string(prefix) + measure.key));
    return measures;
  };
  if (event == "step") history.train_measures = read(naming.measures);
  if (event == "step") history.memory_bytes = std::fmax(history.memory_bytes, number_in(object, "memory_bytes"));
  if (event == "evaluation") history.evaluated.add(read(naming.evaluated), naming.evaluated);
  if (event == "evaluation" && object.contains(std::string(tasks::kAverageKey) + naming.measures.front().key))
    history.evaluated_averages.add(read(naming.evaluated, tasks::kAverageKey), naming.evaluated);
  const auto totals = totals_in(object, naming.unit);
  if (!totals || totals->run_seconds < history.totals.run_seconds) return;
  history.totals = *totals;
  history.step = object["step"].get<std::int64_t>();
}

/// Returns the lines that are complete objects of steps up to `last_step`, and adds their contents to `history`.
std::string lines_until(const std::string& path, std::int64_t last_step, const Naming& naming, History& history) {
  std::string kept;
  MetricsReader reader(path);
  reader.require_open();
  while (reader.next()) {
    const Json object = reader.event();
    const auto step = object.find("step");
    if (step == object.end() || !step->is_number_integer() || step->get<std::int64_t>() > last_step) continue;
    kept += reader.line() + "\n";
    note(object, naming, history);
  }
  return kept;
}

/// Converts bytes, which records contain as double, to a whole number.
Json whole(double bytes) { return std::isfinite(bytes) ? Json(std::llround(bytes)) : Json(nullptr); }

Json whole(const std::vector<double>& list) {
  Json out = Json::array();
  for (const double bytes : list) out.push_back(whole(bytes));
  return out;
}

/// Indents a text, so that TensorBoard, which interprets Markdown, shows it unchanged.
std::string indented(const std::string& text) {
  std::string out;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) out += "    " + line + "\n";
  return out;
}

Json begin_event(const char* event, std::int64_t step) {
  return Json{{"event", event}, {"time_unix", unix_seconds()}, {"step", step}};
}

}  // namespace

struct Metrics::State {
  std::string directory, jsonl_path;
  Naming naming;
  Descriptor jsonl;
  History history;
  std::unique_ptr<EventWriter> tensorboard;

  explicit State(const Options& options)
      : directory(options.directory), jsonl_path(metrics_path(directory)), naming(options.naming) {
    std::filesystem::create_directories(directory);
    const bool is_fresh = options.resume_step < 0;
    if (is_fresh) {
      std::filesystem::remove(directory + "/metrics.json");
      std::filesystem::remove(directory + "/samples.txt");
      std::filesystem::remove(jsonl_path);
    } else if (std::filesystem::exists(jsonl_path)) {
      replace_file(jsonl_path, lines_until(jsonl_path, options.resume_step, naming, history));
      add_end_of_last_start(options.resume_step);
    }
    open_jsonl();
    if (!options.tensorboard) return;
    tensorboard = std::make_unique<EventWriter>(directory + "/tensorboard", options.resume_step);
    if (tensorboard->is_new()) write_configuration(options);
  }

  void open_jsonl() { jsonl = open_file(jsonl_path, O_WRONLY | O_APPEND | O_CREAT | O_NONBLOCK); }

  /// Called once per run.
  void write_configuration(const Options& options) {
    const std::string text = indented(options.configuration);
    std::vector<std::string> tags{"performance/" + naming.unit.rate_key};
    for (const tasks::Measure& measure : naming.measures) tags.push_back("train/" + measure.key);
    for (const tasks::Measure& measure : naming.evaluated) tags.push_back("validation/" + measure.key);
    write_or_warn([&] {
      if (!text.empty()) tensorboard->write_text(0, unix_seconds(), "config", text);
      if (!options.hyperparameters.empty())
        tensorboard->write_hyperparameters(unix_seconds(), options.hyperparameters, tags);
    });
  }

  /// Adds the seconds between the last event and the end of the previous start, in which it waited for its last
  /// checkpoint.
  void add_end_of_last_start(std::int64_t resume_step) {
    const std::string path = directory + "/metrics.json";
    if (!std::filesystem::exists(path)) return;
    const Json summary = Json::parse(read_file(path), nullptr, /*allow_exceptions=*/false);
    if (!summary.is_object() || number_in(summary, "steps") != static_cast<double>(resume_step)) return;
    const double seconds = number_in(summary, "seconds");
    if (seconds > history.totals.run_seconds && history.totals.run_seconds > 0) history.totals.run_seconds = seconds;
  }

  bool was_refused = false;

  /// If the disk is full, metrics are lost but the run continues. There is one warning until the files can be written
  /// again.
  template <typename Work>
  void write_or_warn(Work work) {
    try {
      work();
      was_refused = false;
    } catch (const Error& error) {
      if (!std::exchange(was_refused, true))
        log::warning("metrics are not recorded until their files can be written again: {}", error.what());
    }
  }

  void write(const Json& object) {
    write_or_warn([&] {
      struct stat mine {
      }, there{};
      const bool is_there = ::stat(jsonl_path.c_str(), &there) == 0;
      if (::fstat(jsonl.get(), &mine) == 0 && (!is_there || there.st_ino != mine.st_ino)) {
        open_jsonl();
        log::warning("{} was moved or removed: the events that follow are written to a new file", jsonl_path);
      }
      write_fully(jsonl.get(), object.dump() + "\n", jsonl_path);
    });
  }

  /// Adds one key for each measure.
  void add(Json& object, const std::string& prefix, const std::vector<double>& values) const {
    for (std::size_t i = 0; i < values.size(); ++i) object[prefix + naming.evaluated[i].key] = values[i];
  }

  /// Writes the event to both files. In TensorBoard, each curve is under "GROUP/KEY".
  void write_with_curves(const Json& object) {
    write(object);
    if (!tensorboard) return;
    std::vector<std::pair<std::string, double>> scalars;
    const auto add = [&](std::string tag, const Json& value) {
      if (value.is_number() || value.is_null())
        scalars.emplace_back(std::move(tag), value.is_null() ? std::nan("") : value.get<double>());
    };
    const std::string event = object["event"];
    for (const auto& [key, value] : object.items()) {
      const std::string group = key == "exchange_seconds" ? "" : curve_group(event, key, naming.unit.name);
      if (!group.empty()) add(group + key, value);
    }
    if (object.contains("per_rank")) {
      const Json& per_rank = object["per_rank"];
      const std::size_t n_ranks = per_rank["loss"].size();  // the curves of a single rank are those of the run
      for (const auto& [key, list] : per_rank.items())
        if (n_ranks > 1 && n_ranks <= kMaxRankCurves && key != "host_memory_bytes" && key != "cpu_utilisation")
          for (std::size_t i = 0; i < list.size(); ++i) add(fmt::format("ranks_{}/{}", key, i), list[i]);
    }
    const std::vector<EventWriter::Scalar> views(scalars.begin(), scalars.end());
    write_or_warn([&] { tensorboard->write(object["step"], object["time_unix"], views); });
  }
};

Metrics::Metrics(const Options& options) {
  if (options.enabled) state_ = std::make_unique<State>(options);
}

Metrics::~Metrics() = default;

namespace {

void add_flops(Json& object, const auto& record) {
  object["model_flops_rate"] = record.model_flops_rate;
  if (record.model_flops_utilization) object["model_flops_utilization"] = *record.model_flops_utilization;
}

}  // namespace

void Metrics::step(const StepRecord& r) {
  if (!state_) return;
  const std::string& rate_key = state_->naming.unit.rate_key;
  Json object = begin_event("step", r.step);
  object.update({{"epoch", r.epoch}, {"samples", r.samples}});
  state_->add(object, "", r.measures);
  object.update(
      {{"learning_rate", r.learning_rate}, {"gradient_norm", r.gradient_norm}, {"step_seconds", r.step_seconds}});
  add_rates(object, state_->naming.unit, r.rate, r.loss_rate);
  add_flops(object, r);
  object.update({{"data_wait_seconds", r.data_wait_seconds},
                 {"exposed_communication_seconds", r.exposed_communication_seconds},
                 {"memory_bytes", whole(r.memory_bytes)},
                 {"last_step", r.last_step},
                 {"ranks", r.ranks},
                 {"per_rank",
                  {{"host", r.per_rank.hosts},
                   {"loss", r.per_rank.loss},
                   {rate_key, r.per_rank.rate},
                   {"data_wait_seconds", r.per_rank.data_wait_seconds},
                   {"exposed_communication_seconds", r.per_rank.exposed_communication_seconds},
                   {"memory_bytes", whole(r.per_rank.memory_bytes)},
                   {"utilisation", r.per_rank.utilisation}}}});
  if (!r.per_rank.host_memory_bytes.empty()) {
    object["per_rank"]["host_memory_bytes"] = whole(r.per_rank.host_memory_bytes);
    object["per_rank"]["cpu_utilisation"] = r.per_rank.cpu_utilisation;
  }
  if (r.exchange_seconds) object["exchange_seconds"] = *r.exchange_seconds;
  if (r.loss_scale) object["loss_scale"] = *r.loss_scale;
  add(object, r.totals, state_->naming.unit);
  state_->write_with_curves(object);
}

void Metrics::epoch(const EpochRecord& r) {
  if (!state_) return;
  Json object = begin_event("epoch", r.step);
  object.update({{"epoch", r.epoch}, {state_->naming.unit.name, r.count}});
  state_->add(object, "", r.train);
  object["learning_rate"] = r.learning_rate;
  add_rates(object, state_->naming.unit, r.rate, r.loss_rate);
  object["epoch_seconds"] = r.epoch_seconds;
  state_->add(object, "validation_", r.validation);
  add(object, r.totals, state_->naming.unit);
  state_->write_with_curves(object);
}

void Metrics::evaluation(const EvaluationRecord& r) {
  if (!state_) return;
  Json object = begin_event("evaluation", r.step);
  object.update({{"epoch", r.epoch}, {state_->naming.unit.name, r.count}});
  state_->add(object, "", r.measures);
  state_->add(object, std::string(tasks::kAverageKey), r.average_measures);
  object["evaluation_seconds"] = r.seconds;
  add_rates(object, state_->naming.unit, r.rate, r.loss_rate);
  add(object, r.totals, state_->naming.unit);
  state_->write_with_curves(object);
}

void Metrics::samples(const SamplesRecord& r) {
  if (!state_) return;
  Json object = begin_event("samples", r.step), list = Json::array();
  std::string text = fmt::format("Samples after step {}\n", r.step);
  for (const TextSample& sample : r.samples) {
    list.push_back({{"prompt", valid_utf8(sample.prompt)}, {"text", valid_utf8(sample.text)}});
    text += fmt::format("\n--- {}\n{}\n", sample.prompt, sample.text);
  }
  object.update({{"epoch", r.epoch}, {"samples", list}});
  state_->write(object);
  state_->write_or_warn([&] { replace_file(state_->directory + "/samples.txt", text); });
  if (!state_->tensorboard) return;
  for (std::size_t i = 0; i < r.samples.size(); ++i)
    state_->write_or_warn([&] {
      state_->tensorboard->write_text(
          r.step, object["time_unix"], fmt::format("samples/{}", i + 1),
          "**Prompt**\n\n" + indented(r.samples[i].prompt) + "\n**Reply**\n\n" + indented(r.samples[i].text));
    });
}

void Metrics::checkpoint(const CheckpointRecord& r) {
  if (!state_) return;
  Json object = begin_event("checkpoint", r.step);
  object.update({{"path", r.path},
                 {"checkpoint_seconds", r.seconds},
                 {"blocked_seconds", r.blocked_seconds},
                 {"size_bytes", whole(r.size_bytes)}});
  add(object, r.totals, state_->naming.unit);
  state_->write(object);
}

void Metrics::summary(const Summary& r) {
  if (!state_) return;
  Json object{{"status", r.status},
              {"steps", r.steps},
              {"epochs", r.epochs},
              {state_->naming.unit.name, std::llround(r.totals.count)},
              {"skipped_steps", r.totals.skipped_steps}};
  state_->add(object, "final_train_", r.train_measures);
  const auto add_evaluated = [&](const Evaluated& evaluated, std::string_view prefix) {
    state_->add(object, fmt::format("final_{}", prefix), evaluated.last);
    state_->add(object, fmt::format("best_{}", prefix), evaluated.best);
  };
  add_evaluated(r.evaluated, "");
  add_evaluated(r.evaluated_averages, tasks::kAverageKey);
  const tasks::CountUnit& unit = state_->naming.unit;
  if (unit.counts_part) object["processed_" + unit.name] = std::llround(r.totals.processed);
  add_rates(object, unit, rate_of(unit.counts_part ? r.totals.processed : r.totals.count, r.totals.training_seconds),
            rate_of(r.totals.count, r.totals.training_seconds));
  add_flops(object, r);
  object.update({{"data_wait_share", r.data.wait_share},
                 {"data_busy_readers", r.data.busy_readers},
                 {"data_readers", r.readers},
                 {"data_samples_per_second_per_reader", r.data.rate_per_reader},
                 {"seconds", r.totals.run_seconds},
                 {"ranks", r.ranks},
                 {"memory_bytes", whole(r.memory_bytes)},
                 {"exchanged_bytes", whole(r.exchanged_bytes)},
                 {"buckets", r.n_buckets},
                 {"versions", Json::parse(versions_json())}});
  replace_file(state_->directory + "/metrics.json", object.dump(2) + "\n");
}

bool Metrics::keep_summary(const std::string& status, std::int64_t steps) {
  if (!state_) return true;
  const std::string path = state_->directory + "/metrics.json";
  if (!std::filesystem::exists(path)) return false;
  Json object = Json::parse(read_file(path), nullptr, /*allow_exceptions=*/false);
  if (!object.is_object() || number_in(object, "steps") != static_cast<double>(steps)) return false;
  if (object.value("status", Json()) == status) return true;
  object["status"] = status;
  replace_file(path, object.dump(2) + "\n");
  return true;
}

RecordedSteps recorded_steps(const std::string& directory) {
  const std::string path = metrics_path(directory);
  RecordedSteps out;
  if (!std::filesystem::exists(path)) return out;
  MetricsReader reader(path);
  reader.require_open();
  while (reader.next()) {
    const Json event = reader.event();
    if (event.empty()) continue;
    out.has_events = true;
    const double step = event.value("event", Json()) == "checkpoint" ? number_in(event, "step") : -1;
    if (step > static_cast<double>(out.checkpoint)) out.checkpoint = static_cast<std::int64_t>(step);
  }
  return out;
}

const History& Metrics::history() const {
  static const History none;
  return state_ ? state_->history : none;
}

void Evaluated::add(const std::vector<double>& measures, std::span<const tasks::Measure> which) {
  last = measures;
  best.resize(measures.size(), std::nan(""));
  for (std::size_t i = 0; i < measures.size(); ++i) {
    const bool is_better = which[i].greater_is_better ? measures[i] > best[i] : measures[i] < best[i];
    if (is_better || std::isnan(best[i])) best[i] = measures[i];
  }
}

double rate_of(double count, double seconds) { return seconds > 0 ? count / seconds : 0; }

std::string epoch_line(const EpochRecord& r, const Naming& naming) {
  std::string line = fmt::format("Epoch [{}/{}] LR: {} | ", r.epoch, r.epochs, learning_rate_text(r.learning_rate));
  const bool evaluated = !r.validation.empty();
  for (std::size_t i = 0; i < r.train.size(); ++i) {
    const tasks::Measure& measure = naming.measures[i];
    std::string label = measure.key;
    label[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(label[0])));
    line += fmt::format("{} ({}): {}", label, evaluated ? "train, val" : "train",
                        measure.text(r.train[i], measure.epoch_digits));
    if (evaluated) line += ", " + measure.text(r.validation[i], measure.epoch_digits);
    line += " | ";
  }
  return line + fmt::format("Throughput: {}", naming.unit.rate_text(r.rate, r.loss_rate));
}

}  // namespace lockstep::run
