#include "train/recorder.h"

#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/numbers.h"
#include "base/printable.h"
#include "base/process.h"
#include "base/progress_bar.h"
#include "comm/buckets.h"
#include "config/parser.h"
#include "inference/inference.h"
#include "lockstep/log.h"
#include "train/skipped_steps.h"

namespace lockstep::train {
namespace {

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// A rank that is not bound to its own processors shares those of the node with the other ranks there.
int cores_of_rank(const World& world) {
  const int usable = n_usable_processors();
  return usable < n_processors() ? usable : std::max(1, usable / world.local_size());
}

run::DataSource source_of(const Session& session) {
  const data::Dataset& set = *session.task->train_set();
  return {.readers = session.config.data.readers,
          .cores = cores_of_rank(session.world),
          .samples = set.sample_word(),
          .faster = set.faster_reading()};
}

double mean_loss(const LossSums& sums) { return tasks::loss_measure().of(sums); }

}  // namespace

Recorder::Recorder(Session& session)
    : session_(session),
      naming_(run::naming_of(*session.task)),
      metrics_({.directory = session.run.path(),
                .naming = naming_,
                .resume_step = session.resumed_from.empty() ? -1 : session.progress.step,
                .tensorboard = session.config.log.tensorboard,
                .configuration = config::to_yaml(session.config),
                .hyperparameters = config::values_in(config::learning_yaml(session.config)),
                .enabled = session.leader()}),
      begin_(Clock::now()),
      step_begin_(begin_),
      epoch_begin_(begin_),
      data_watch_(source_of(session), begin_),
      cpu_seconds_(cpu_seconds()) {
  epoch_sums_ = session.progress.epoch_sums;
  continue_totals();
  bar_ = std::make_unique<ProgressBar>("training", session.last_step, session.leader() && session.config.log.progress);
}

bool Recorder::logs(std::int64_t step) const {
  const int every = session_.config.log.every_steps;
  return (every > 0 && (step + 1) % every == 0) || step + 1 == session_.last_step;
}

/// The events contain the totals of earlier starts. If the previous start was killed, the steps between the last event
/// and the checkpoint are added as if they had been as fast as those before.
void Recorder::continue_totals() {
  const run::History& history = metrics_.history();
  totals_ = history.totals;
  final_train_ = history.train_measures;
  memory_peak_ = history.memory_bytes;
  evaluated_ = history.evaluated;
  if (session_.config.ema.is_on()) evaluated_averages_ = history.evaluated_averages;
  const double rate = run::rate_of(totals_.count, totals_.training_seconds);
  if (rate == 0) return;
  const std::int64_t samples = session_.samples_after(session_.progress.step) - session_.samples_after(history.step);
  const double count = session_.task->nominal_count(samples);
  totals_.count += count;
  totals_.processed += session_.task->processed_count(samples);
  totals_.training_seconds += count / rate;
  totals_.run_seconds += count / rate;
}

run::Totals Recorder::totals() const {
  run::Totals now = totals_;
  now.run_seconds += seconds_since(begin_);
  return now;
}

void Recorder::restart_clock() {
  step_begin_ = Clock::now();
  cpu_seconds_ = cpu_seconds();
}

StepClock Recorder::lap() {
  const StepClock clock{.seconds = seconds_since(step_begin_),
                        .cpu_seconds = cpu_seconds() - cpu_seconds_,
                        .exchange_seconds = session_.communicator->exchange_seconds()};
  totals_.training_seconds += clock.seconds;
  epoch_training_seconds_ += clock.seconds;
  restart_clock();
  return clock;
}

void Recorder::pause() { lap(); }

void Recorder::write_flags(StepFlags& flags) {
  flags.report_due = session_.leader() && data_watch_.is_due(Clock::now());
}

std::vector<double> Recorder::measures_of(const LossSums& sums) const {
  std::vector<double> values;
  for (const tasks::Measure& measure : naming_.measures)
    values.push_back(sums.count > 0 ? measure.of(sums) : std::nan(""));
  return values;
}

/// "loss 1.2345 | perplexity 3.4"
std::string Recorder::text_of(const std::vector<double>& measures, int tasks::Measure::*digits) const {
  std::string text;
  for (std::size_t i = 0; i < measures.size(); ++i) {
    const tasks::Measure& measure = naming_.evaluated[i];
    text += fmt::format("{}{} {}", i > 0 ? " | " : "", measure.key, measure.text(measures[i], measure.*digits));
  }
  return text;
}

void Recorder::step(std::int64_t step, const StepResult& result, double learning_rate, const StepClock& clock) {
  if (result.is_applied || had_no_weight(result))
    epoch_sums_ += result.sums;
  else
    ++totals_.skipped_steps;
  const double processed = session_.task->processed_count(session_.global_batch_of(step));
  totals_.count += result.sums.count;
  totals_.processed += processed;
  epoch_count_ += result.sums.count;
  epoch_processed_ += processed;
  has_worked_ = true;
  waited_seconds_ += result.exposed_communication_seconds;
  interval_seconds_ += clock.seconds;
  ++interval_steps_;
  flops_ += session_.flops_of(step);
  flops_seconds_ += clock.seconds;
  count_data(clock);
  final_train_ = measures_of(result.sums);
  if (session_.leader() && session_.config.log.progress)
    bar_->update(step + 1, "loss " + fixed_text(mean_loss(result.sums), 4),
                 fmt::format("epoch {}/{}", step / session_.steps_per_epoch + 1, session_.config.train.epochs));
  if (logs(step)) write_step(step, result, learning_rate, clock);
  if (result.flags.report_due > 0) report_data(logs(step));
}

void Recorder::write_step(std::int64_t step, const StepResult& result, double learning_rate, const StepClock& clock) {
  run::StepRecord record{.step = step + 1, .epoch = step / session_.steps_per_epoch + 1};
  record.samples = session_.samples_after(step + 1);
  record.measures = measures_of(result.sums);
  record.learning_rate = learning_rate;
  record.gradient_norm = result.gradient_norm;
  record.totals = totals();
  if (session_.plan->loss_scaling()) record.loss_scale = result.loss_scale.scale;
  record.step_seconds = clock.seconds;
  record.rate = run::rate_of(session_.task->processed_count(session_.global_batch_of(step)), clock.seconds);
  record.loss_rate = run::rate_of(result.sums.count, clock.seconds);
  record.model_flops_rate = run::rate_of(session_.flops_of(step), clock.seconds);
  record.model_flops_utilization = session_.utilization_of(record.model_flops_rate);
  record.last_step = session_.last_step;
  record.ranks = session_.world.size();
  gather_ranks(record, step, result, clock);
  memory_peak_ = std::max(memory_peak_, record.memory_bytes);
  metrics_.step(record);
  log::info(
      "step {}/{} | {} | LR {} | norm {} | {:.3f} s | {} | {} | data {:.1f} ms | communication {:.1f} ms | {:.0f} MiB",
      step + 1, session_.last_step, text_of(record.measures, &tasks::Measure::step_digits),
      learning_rate_text(learning_rate), fixed_text(record.gradient_norm, 3), record.step_seconds,
      naming_.unit.rate_text(record.rate, record.loss_rate),
      record.model_flops_utilization ? fmt::format("MFU {:.1f} %", 100 * *record.model_flops_utilization)
                                     : flops_rate_text(record.model_flops_rate),
      1e3 * record.data_wait_seconds, 1e3 * record.exposed_communication_seconds, record.memory_bytes / (1 << 20));
  warn_of_slow_rank();
}

void Recorder::count_data(const StepClock& clock) {
  if (!first_usage_) {
    first_usage_ = clock.loader;
    return;
  }
  data_ = {.seconds = data_.seconds + clock.seconds,
           .wait_seconds = clock.loader.wait_seconds - first_usage_->wait_seconds,
           .busy_seconds = clock.loader.busy_seconds - first_usage_->busy_seconds,
           .read_seconds = clock.loader.read_seconds - first_usage_->read_seconds,
           .n_samples = static_cast<double>(clock.loader.n_samples - first_usage_->n_samples)};
}

/// Collective: each rank's report on the step, and how long it waited for others since the last logged one.
void Recorder::gather_ranks(run::StepRecord& record, std::int64_t step, const StepResult& result,
                            const StepClock& clock) {
  struct RankFigures {
    double loss, processed, data_wait, exposed, waited, host_memory, cpu;
    double device_memory, device, exchange;  // -1 where unknown
    run::DataUsage data;
  };
  const DeviceUsage usage = session_.backend->usage();
  device_memory_ = std::max(device_memory_, usage.memory_bytes ? static_cast<double>(*usage.memory_bytes) : -1.0);
  const std::optional<double> exchanged = clock.exchange_seconds;
  const RankFigures mine{.loss = mean_loss(result.local),
                         .processed = session_.task->processed_count(session_.shape_of(step).samples_of_rank()),
                         .data_wait = clock.data_wait_seconds,
                         .exposed = result.exposed_communication_seconds,
                         .waited = waited_seconds_ / interval_seconds_,
                         .host_memory = static_cast<double>(peak_memory_bytes()),
                         .cpu = clock.cpu_seconds / clock.seconds,
                         .device_memory = device_memory_,
                         .device = usage.utilisation.value_or(-1),
                         .exchange = exchanged ? (*exchanged - exchange_seconds_) / interval_steps_ : -1,
                         .data = data_};
  waited_seconds_ = interval_seconds_ = 0;
  interval_steps_ = 0;
  exchange_seconds_ = exchanged.value_or(0);
  waits_.clear();
  hosts_.clear();
  std::vector<run::DataUsage> data;
  for (const std::string& bytes : session_.world.all_gather(
           std::string(reinterpret_cast<const char*>(&mine), sizeof(mine)) + session_.world.host())) {
    RankFigures m{};
    std::memcpy(&m, bytes.data(), sizeof(m));
    waits_.push_back(m.waited);
    wait_sums_.resize(std::max(wait_sums_.size(), waits_.size()));
    wait_sums_[waits_.size() - 1] += m.waited;
    hosts_.push_back(bytes.substr(sizeof(m)));
    run::PerRank& ranks = record.per_rank;
    ranks.loss.push_back(m.loss);
    ranks.rate.push_back(run::rate_of(m.processed, record.step_seconds));
    ranks.data_wait_seconds.push_back(m.data_wait);
    ranks.exposed_communication_seconds.push_back(m.exposed);
    ranks.memory_bytes.push_back(m.device_memory >= 0 ? m.device_memory : m.host_memory);
    ranks.utilisation.push_back(m.device >= 0 ? m.device : m.cpu);
    if (m.device_memory >= 0 || m.device >= 0) {
      ranks.host_memory_bytes.push_back(m.host_memory);
      ranks.cpu_utilisation.push_back(m.cpu);
    }
    record.memory_bytes = std::max(record.memory_bytes, ranks.memory_bytes.back());
    record.data_wait_seconds = std::max(record.data_wait_seconds, m.data_wait);
    record.exposed_communication_seconds = std::max(record.exposed_communication_seconds, m.exposed);
    if (m.exchange >= 0) record.exchange_seconds = std::min(record.exchange_seconds.value_or(m.exchange), m.exchange);
    data.push_back(m.data);
  }
  record.per_rank.hosts = hosts_;
  ++n_waits_;
  data_watch_.update(data);
}

/// Collective, unless this step is logged.
void Recorder::report_data(bool is_logged) {
  if (!is_logged) {
    std::vector<run::DataUsage> data;
    for (const std::string& bytes :
         session_.world.all_gather(std::string(reinterpret_cast<const char*>(&data_), sizeof(data_)))) {
      data.emplace_back();
      std::memcpy(&data.back(), bytes.data(), sizeof(run::DataUsage));
    }
    data_watch_.update(data);
  }
  data_watch_.set_faster(session_.task->train_set()->faster_reading());
  const std::string report = data_watch_.report();
  if (session_.leader() && !report.empty()) log::info("{}", report);
}

std::optional<run::SlowRank> Recorder::slow_rank() const {
  const double limit = session_.config.log.slow_rank_percent / 100;
  if (n_waits_ == 0 || limit == 0) return std::nullopt;
  std::vector<double> waits = wait_sums_;
  for (double& wait : waits) wait /= n_waits_;
  return run::find_slow_rank(waits, limit);
}

void Recorder::warn_of_slow_rank() {
  constexpr double kQuietSeconds = 60;
  const double limit = session_.config.log.slow_rank_percent / 100;
  const auto slow = run::find_slow_rank(waits_, limit);
  if (!slow || limit == 0 || !session_.leader()) return;
  if (last_warning_ && seconds_since(*last_warning_) < kQuietSeconds) return;
  last_warning_ = Clock::now();
  log::warning(
      "rank {} on {} is slow: since the last logged step, the other ranks have spent {:.0f} % of their time waiting "
      "for it",
      slow->rank, hosts_[static_cast<std::size_t>(slow->rank)], 100 * slow->waited_for);
}

void Recorder::epoch(std::int64_t step, double learning_rate, const LossSums* validation) {
  run::EpochRecord record{.step = step + 1,
                          .epoch = (step + 1) / session_.steps_per_epoch,
                          .epochs = session_.config.train.epochs,
                          .count = static_cast<std::int64_t>(epoch_sums_.count),
                          .learning_rate = learning_rate,
                          .train = measures_of(epoch_sums_),
                          .rate = run::rate_of(epoch_processed_, epoch_training_seconds_),
                          .loss_rate = run::rate_of(epoch_count_, epoch_training_seconds_),
                          .epoch_seconds = seconds_since(epoch_begin_),
                          .totals = totals()};
  if (validation) record.validation = measures_of(*validation);
  metrics_.epoch(record);
  log::info("{}", run::epoch_line(record, naming_));
  last_epoch_sums_ = epoch_sums_;
  epoch_sums_ = {};
  epoch_count_ = epoch_processed_ = epoch_training_seconds_ = 0;
  epoch_begin_ = Clock::now();
}

void Recorder::evaluation(std::int64_t step, const EvaluationResult& result, const EvaluationResult* of_averages) {
  const std::vector<double>& measures = result.measures;
  const std::vector<double> average_measures = of_averages ? of_averages->measures : std::vector<double>();
  evaluated_.add(measures, naming_.evaluated);
  if (of_averages) evaluated_averages_.add(average_measures, naming_.evaluated);
  has_worked_ = true;
  const auto count = static_cast<std::int64_t>(result.sums.count);
  const double n_models = of_averages ? 2 : 1;
  const double loss_seconds = result.loss_seconds + (of_averages ? of_averages->loss_seconds : 0);
  const std::int64_t n_samples = inference::evaluated_samples(session_.config, *session_.task->validation_set());
  const double rate = run::rate_of(n_models * session_.task->processed_count(n_samples), loss_seconds);
  const double loss_rate = run::rate_of(n_models * result.sums.count, loss_seconds);
  metrics_.evaluation({.step = step,
                       .epoch = step / session_.steps_per_epoch,
                       .count = count,
                       .measures = measures,
                       .average_measures = average_measures,
                       .seconds = result.seconds + (of_averages ? of_averages->seconds : 0),
                       .rate = rate,
                       .loss_rate = loss_rate,
                       .totals = totals()});
  log::info("evaluation after step {} | {} | {} {} | {}", step, text_of(measures, &tasks::Measure::result_digits),
            count, naming_.unit.name, naming_.unit.rate_text(rate, loss_rate));
  if (of_averages)
    log::info("  the averages of the weights (ema) | {}", text_of(average_measures, &tasks::Measure::result_digits));
}

void Recorder::samples(std::int64_t step, const std::vector<run::TextSample>& samples) {
  constexpr std::size_t kMostOfPrompt = 80, kMostOfText = 400;  // bytes in the log
  metrics_.samples({.step = step, .epoch = step / session_.steps_per_epoch, .samples = samples});
  for (const run::TextSample& sample : samples)
    log::info("sample after step {} | {} | {}", step, printable(sample.prompt, kMostOfPrompt),
              printable(sample.text, kMostOfText));
}

void Recorder::checkpoint(std::int64_t step, const std::string& path, double seconds, double blocked_seconds,
                          const run::Totals& totals) {
  const double size_bytes = static_cast<double>(file_size_bytes(path));
  metrics_.checkpoint({.step = step,
                       .path = path,
                       .seconds = seconds,
                       .blocked_seconds = blocked_seconds,
                       .size_bytes = size_bytes,
                       .totals = totals});
  log::info("checkpoint {} ({:.0f} MB in {:.2f} s, of which training waited {:.3f} s)", path, size_bytes / 1e6, seconds,
            blocked_seconds);
}

void Recorder::finish(const std::string& status, std::int64_t step) {
  bar_.reset();
  data_watch_.set_faster(session_.task->train_set()->faster_reading());
  if (const std::string report = data_watch_.summary(); session_.leader() && !report.empty()) log::info("{}", report);
  if (!has_worked_ && metrics_.keep_summary(status, step)) return;
  const bool has_sums = session_.world.size() > 1;
  const double flops_rate = run::rate_of(flops_, flops_seconds_);
  metrics_.summary(
      {.status = status,
       .steps = step,
       .epochs = step / session_.steps_per_epoch,
       .train_measures = final_train_,
       .evaluated = evaluated_,
       .evaluated_averages = evaluated_averages_,
       .totals = totals(),
       .model_flops_rate = flops_rate,
       .model_flops_utilization = session_.utilization_of(flops_rate),
       .data = data_watch_.figures(),
       .readers = session_.config.data.readers,
       .ranks = session_.world.size(),
       .memory_bytes = memory_peak_,
       .exchanged_bytes = has_sums ? session_.plan->n_sums() * comm::exchanged_bytes(session_.plan->buckets()) : 0,
       .n_buckets = has_sums ? session_.plan->n_sums() * static_cast<int>(session_.plan->buckets().size()) : 0});
}

}  // namespace lockstep::train
