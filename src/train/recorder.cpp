#include "train/recorder.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstring>

#include "base/process.h"
#include "lockstep/log.h"

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

double mean(double sum, double n) { return n > 0 ? sum / n : 0; }

}  // namespace

Recorder::Recorder(Session& session)
    : session_(session),
      metrics_({.directory = session.run.path(),
                .resume_step = session.resumed_from.empty() ? -1 : session.progress.step,
                .tensorboard = session.config.log.tensorboard,
                .enabled = session.leader()}),
      begin_(Clock::now()),
      step_begin_(begin_),
      epoch_begin_(begin_),
      cpu_seconds_(cpu_seconds()) {
  epoch_sums_ = session.progress.epoch_sums;
  resumed_samples_ = epoch_sums_.samples;
  bar_ = std::make_unique<ProgressBar>("training", session.last_step, session.leader() && session.config.log.progress);
}

bool Recorder::logs(std::int64_t step) const {
  const int every = session_.config.log.every_steps;
  return (every > 0 && (step + 1) % every == 0) || step + 1 == session_.last_step;
}

void Recorder::restart_clock() {
  const double paused = seconds_since(step_begin_);
  paused_seconds_ += paused;
  epoch_paused_seconds_ += paused;
  step_begin_ = Clock::now();
  cpu_seconds_ = cpu_seconds();
}

StepClock Recorder::lap() {
  const StepClock clock{.seconds = seconds_since(step_begin_), .cpu_seconds = cpu_seconds() - cpu_seconds_};
  step_begin_ = Clock::now();
  cpu_seconds_ = cpu_seconds();
  return clock;
}

void Recorder::step(std::int64_t step, const StepResult& result, double learning_rate, const StepClock& clock) {
  if (result.is_applied) {
    epoch_sums_.loss += result.sums.loss;
    epoch_sums_.correct += result.sums.correct;
    epoch_sums_.samples += result.sums.samples;
  } else {
    ++skipped_steps_;
  }
  trained_samples_ += static_cast<std::int64_t>(result.sums.samples);
  waited_seconds_ += result.exposed_communication_seconds;
  interval_seconds_ += clock.seconds;
  final_loss_ = mean(result.sums.loss, result.sums.samples);
  final_accuracy_ = mean(result.sums.correct, result.sums.samples);
  if (session_.leader() && session_.config.log.progress)
    bar_->update(step + 1, fmt::format("loss {:.4f}", final_loss_));
  if (logs(step)) write_step(step, result, learning_rate, clock);
}

void Recorder::write_step(std::int64_t step, const StepResult& result, double learning_rate, const StepClock& clock) {
  struct Mine {
    double loss, data_wait, exposed, waited, host_memory, cpu, device_memory, device;  // the device's: -1 where unknown
  };
  const DeviceUsage usage = session_.backend->usage();
  device_memory_ = std::max(device_memory_, usage.memory_bytes ? static_cast<double>(*usage.memory_bytes) : -1.0);
  const Mine mine{.loss = mean(result.local.loss, result.local.samples),
                  .data_wait = clock.data_wait_seconds,
                  .exposed = result.exposed_communication_seconds,
                  .waited = waited_seconds_ / interval_seconds_,
                  .host_memory = static_cast<double>(peak_memory_bytes()),
                  .cpu = clock.cpu_seconds / clock.seconds,
                  .device_memory = device_memory_,
                  .device = usage.utilisation.value_or(-1)};
  waited_seconds_ = interval_seconds_ = 0;
  const std::vector<std::string> all = session_.world.all_gather(
      std::string(reinterpret_cast<const char*>(&mine), sizeof(mine)) + session_.world.host());
  std::vector<double> waits;
  StepRecord record{.step = step + 1, .epoch = step / session_.steps_per_epoch + 1};
  record.samples = session_.samples_after(step + 1);
  record.loss = final_loss_;
  record.accuracy = final_accuracy_;
  record.learning_rate = learning_rate;
  record.gradient_norm = result.gradient_norm;
  record.skipped_steps = skipped_steps_;
  if (session_.plan->loss_scaling()) record.loss_scale = result.loss_scale.scale;
  record.step_seconds = clock.seconds;
  record.samples_per_second = result.sums.samples / clock.seconds;
  record.ranks = session_.world.size();
  for (const std::string& bytes : all) {
    Mine m{};
    std::memcpy(&m, bytes.data(), sizeof(m));
    waits.push_back(m.waited);
    record.per_rank.loss.push_back(m.loss);
    record.per_rank.data_wait_seconds.push_back(m.data_wait);
    record.per_rank.memory_bytes.push_back(m.device_memory >= 0 ? m.device_memory : m.host_memory);
    record.per_rank.utilisation.push_back(m.device >= 0 ? m.device : m.cpu);
    if (m.device_memory >= 0 || m.device >= 0) {
      record.per_rank.host_memory_bytes.push_back(m.host_memory);
      record.per_rank.cpu_utilisation.push_back(m.cpu);
    }
    record.memory_bytes = std::max(record.memory_bytes, record.per_rank.memory_bytes.back());
    record.data_wait_seconds = std::max(record.data_wait_seconds, m.data_wait);
    record.exposed_communication_seconds = std::max(record.exposed_communication_seconds, m.exposed);
  }
  metrics_.step(record);
  log::info(
      "step {}/{} | loss {:.4f} | accuracy {:.1f}% | LR {:.6f} | norm {:.3f} | {:.3f} s | {:.1f} img/s | data {:.1f} "
      "ms | "
      "communication {:.1f} ms | {:.0f} MiB",
      step + 1, session_.last_step, record.loss, 100 * record.accuracy, learning_rate, record.gradient_norm,
      record.step_seconds, record.samples_per_second, 1e3 * record.data_wait_seconds,
      1e3 * record.exposed_communication_seconds, record.memory_bytes / (1 << 20));
  const double limit = session_.config.log.slow_rank_percent / 100;
  if (const auto slow = find_slow_rank(waits, limit); slow && limit > 0)
    warn_of(*slow, all[static_cast<std::size_t>(slow->rank)].substr(sizeof(mine)));
}

void Recorder::warn_of(const SlowRank& slow, const std::string& host) {
  constexpr double kQuietSeconds = 60;
  if (!session_.leader() || (last_warning_ && seconds_since(*last_warning_) < kQuietSeconds)) return;
  last_warning_ = Clock::now();
  log::warning(
      "rank {} on {} is slow: since the step logged before, the other ranks have spent {:.0f} % of their time "
      "in waiting for it",
      slow.rank, host, 100 * slow.waited_for);
}

void Recorder::epoch(std::int64_t step, double learning_rate, const LossSums* validation) {
  EpochRecord record{.step = step + 1,
                     .epoch = (step + 1) / session_.steps_per_epoch,
                     .epochs = session_.config.train.epochs,
                     .samples = static_cast<std::int64_t>(epoch_sums_.samples),
                     .learning_rate = learning_rate};
  record.train_loss = mean(epoch_sums_.loss, epoch_sums_.samples);
  record.train_accuracy = mean(epoch_sums_.correct, epoch_sums_.samples);
  if (validation) {
    record.evaluated = true;
    record.validation_loss = mean(validation->loss, validation->samples);
    record.validation_accuracy = mean(validation->correct, validation->samples);
  }
  record.epoch_seconds = seconds_since(epoch_begin_);
  record.samples_per_second =
      (epoch_sums_.samples - resumed_samples_) / std::max(1e-9, record.epoch_seconds - epoch_paused_seconds_);
  metrics_.epoch(record);
  log::info("{}", epoch_line(record));
  last_epoch_sums_ = epoch_sums_;
  epoch_sums_ = {};
  resumed_samples_ = 0;
  epoch_paused_seconds_ = 0;
  epoch_begin_ = Clock::now();
}

void Recorder::evaluation(std::int64_t step, const LossSums& sums, double seconds) {
  final_loss_ = mean(sums.loss, sums.samples);
  final_accuracy_ = mean(sums.correct, sums.samples);
  if (!has_best_ || final_accuracy_ > best_accuracy_) best_accuracy_ = final_accuracy_;
  if (!has_best_ || final_loss_ < best_loss_) best_loss_ = final_loss_;
  has_best_ = true;
  metrics_.evaluation({.step = step,
                       .epoch = step / session_.steps_per_epoch,
                       .samples = static_cast<std::int64_t>(sums.samples),
                       .loss = final_loss_,
                       .accuracy = final_accuracy_,
                       .seconds = seconds,
                       .samples_per_second = sums.samples / seconds});
  log::info("evaluation after step {} | loss {:.4f} | accuracy {:.2f}% | {} samples | {:.1f} img/s", step, final_loss_,
            100 * final_accuracy_, static_cast<std::int64_t>(sums.samples), sums.samples / seconds);
}

void Recorder::checkpoint(std::int64_t step, const std::string& path, double seconds, double blocked_seconds) {
  const double size_bytes = static_cast<double>(file_size_bytes(path));
  metrics_.checkpoint(
      {.step = step, .path = path, .seconds = seconds, .blocked_seconds = blocked_seconds, .size_bytes = size_bytes});
  log::info("checkpoint {} ({:.0f} MB in {:.2f} s, of which training waited {:.3f} s)", path, size_bytes / 1e6, seconds,
            blocked_seconds);
}

void Recorder::finish(const std::string& status, std::int64_t step) {
  bar_.reset();
  const double seconds = seconds_since(begin_);
  metrics_.summary(
      {.status = status,
       .steps = step,
       .epochs = step / session_.steps_per_epoch,
       .samples = trained_samples_,
       .skipped_steps = skipped_steps_,
       .final_loss = final_loss_,
       .final_accuracy = final_accuracy_,
       .best_loss = has_best_ ? best_loss_ : final_loss_,
       .best_accuracy = has_best_ ? best_accuracy_ : final_accuracy_,
       .samples_per_second = static_cast<double>(trained_samples_) / std::max(1e-9, seconds - paused_seconds_),
       .seconds = seconds,
       .ranks = session_.world.size()});
}

}  // namespace lockstep::train
