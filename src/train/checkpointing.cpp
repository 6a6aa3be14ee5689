#include "train/checkpointing.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/outcome.h"
#include "checkpoint/checkpoint.h"
#include "config/parser.h"
#include "lockstep/log.h"
#include "lockstep/ops/step_scalars.h"
#include "lockstep/trace.h"

namespace lockstep::train {
namespace {

/// Only warns about a failure, because the checkpoint already has its final name and stays.
template <typename Work>
void warn_if_it_fails(Work work) {
  try {
    work();
  } catch (const Error& error) {
    log::warning("{}", error.what());
  }
}

}  // namespace

Checkpointing::Checkpointing(Session& session, Recorder& recorder, const run::RunLock& lock)
    : s_(session),
      recorder_(recorder),
      lock_(lock),
      saver_(session.replica->copied_sources(), session.world, session.replica->copying()),
      last_good_(session.resumed_from) {}

bool Checkpointing::due_after(std::int64_t step) const {
  const Config::Checkpoint& c = s_.config.checkpoint;
  return is_due_by_clock_ || s_.is_due(step + 1, c.every_steps, c.every_epochs);
}

void Checkpointing::write_flags(std::int64_t step, StepFlags& flags) {
  written_step_ = step;
  const double minutes = s_.config.checkpoint.every_minutes;
  flags.save_due = s_.leader() && minutes > 0 && seconds_since(last_save_) >= 60 * minutes;
  flags.saver_done = saver_.phase_is_done();
}

void Checkpointing::read_flags(std::int64_t step, const StepFlags& flags) {
  if (flags.save_due > 0) is_due_by_clock_ = true;
  if (!saver_.is_running() || step <= phase_step_ || flags.saver_done < s_.world.size()) return;
  if (const auto outcome = saver_.advance()) conclude(*outcome);
  phase_step_ = written_step_;
}

void Checkpointing::save(std::int64_t steps_done, std::optional<double> quality) {
  const trace::Span span(trace::Kind::checkpoint, "save step", steps_done);
  if (saver_.is_running()) {
    if (s_.leader())
      log::info("the checkpoint of step {} waits for that of step {}, which is still being written", steps_done,
                running_.step);
    wait();
  }
  all_agree(s_.world, [this] {
    if (s_.leader()) s_.run.require_present();
  });
  const Clock::time_point begin = Clock::now();
  const TrainingProgress before = s_.progress;
  const bool is_best = note_best(quality);
  running_ = {.step = steps_done, .is_best = is_best, .before = before, .totals = recorder_.totals(), .begin = begin};
  const std::string path = s_.run.checkpoint(steps_done, s_.steps_per_epoch), directory = s_.run.checkpoints();
  const checkpoint::Retention retention{.keep = s_.config.checkpoint.keep,
                                        .keep_every = s_.config.checkpoint.keep_every};
  saver_.start(path, state(steps_done, quality),
               {.before =
                    [this] {
                      lock_.require_held();
                      s_.run.create();  // in case the folder of checkpoints is gone
                    },
                .after =
                    [=, this] {
                      warn_if_it_fails([&] { checkpoint::set_link(directory, "latest", path); });
                      if (is_best) warn_if_it_fails([&] { checkpoint::set_link(directory, "best", path); });
                      known_files_[path] = true;
                      warn_if_it_fails([&] { checkpoint::prune(directory, retention, known_files_); });
                    }});
  s_.progress.step = steps_done;
  phase_step_ = written_step_;
  is_due_by_clock_ = false;
  last_save_ = begin;
  running_.blocked_seconds = seconds_since(begin);
}

checkpoint::StateJson Checkpointing::state(std::int64_t steps_done, std::optional<double> quality) const {
  checkpoint::StateJson json{{"format_version", checkpoint::kFormatVersion},
                             {"layout_version", checkpoint::kLayoutVersion},
                             {"model", checkpoint::StateJson(s_.task->model_stamp())},
                             {"inference", checkpoint::StateJson(s_.task->inference_stamp())},
                             {"precision", name(s_.config.precision)},
                             {"step", steps_done},
                             {"epoch", steps_done / s_.steps_per_epoch},
                             {"samples", s_.samples_after(steps_done)},
                             {"global_batch", s_.config.train.global_batch},
                             {"seed", s_.config.run.seed},
                             {"steps_per_epoch", s_.steps_per_epoch},
                             {"configuration", config::learning_yaml(s_.config)},
                             {"epoch_sums", numbers_of(recorder_.epoch_so_far())},
                             {"quality", quality ? checkpoint::StateJson(*quality) : checkpoint::StateJson()}};
  if (s_.progress.optimizer_begin > 0) json["optimizer_begin"] = s_.progress.optimizer_begin;
  // Members for optional features are written only if these are in use, so that ordinary checkpoints do not change.
  if (const std::string& hash = s_.task->train_set()->info().content_hash; !hash.empty())
    json["data"] = {{"hash", hash}};
  if (!s_.base_hash.empty()) json["base"] = {{"hash", s_.base_hash}};
  if (s_.config.checkpoint.best != Config::Checkpoint{}.best) json["quality_of"] = s_.config.checkpoint.best;
  if (const checkpoint::StateJson patience = s_.progress.patience.state(); !patience.is_null())
    json["patience"] = patience;
  run::add_slices(s_.progress.slices, json);
  if (s_.plan->loss_scaling()) {
    const LossScale loss_scale = s_.replica->loss_scale();
    json["loss_scale"] = {{"scale", loss_scale.scale}, {"good_steps", loss_scale.good_steps}};
  }
  return json;
}

bool Checkpointing::would_be_best(std::optional<double> quality) const {
  return quality && !std::isnan(*quality) && (!s_.progress.has_best || *quality > s_.progress.best);
}

bool Checkpointing::note_best(std::optional<double> quality) {
  if (!would_be_best(quality)) return false;
  s_.progress.best = *quality;
  s_.progress.has_best = true;
  return true;
}

void Checkpointing::wait() {
  const trace::Span span(trace::Kind::wait, "checkpoint");
  const Clock::time_point begin = Clock::now();
  const auto outcome = saver_.wait();
  running_.blocked_seconds += seconds_since(begin);
  conclude(outcome);
}

void Checkpointing::conclude(const checkpoint::BackgroundSaver::Outcome& outcome) {
  const bool is_repeated = outcome.error && last_error_ && outcome.error->code() == last_error_->code();
  n_failed_ = is_repeated ? n_failed_ + 1 : 1;
  last_error_ = outcome.error;
  if (!outcome.error) {
    last_good_ = outcome.path;
    if (s_.leader())
      recorder_.checkpoint(running_.step, outcome.path, seconds_since(running_.begin), running_.blocked_seconds,
                           running_.totals);
    return;
  }
  if (running_.is_best) {  // `best` still names the previous one
    s_.progress.best = running_.before.best;
    s_.progress.has_best = running_.before.has_best;
  }
  if (!s_.leader()) return;
  if (is_repeated)
    log::error("the checkpoint of step {} was not written for the same reason: {} in a row", running_.step, n_failed_);
  else
    log::error("the checkpoint of step {} was not written: {}; {}; the next one will be tried when it is due",
               running_.step, outcome.error->what(), last_good_text());
}

std::string Checkpointing::last_good_text() const {
  return last_good_.empty() ? "this run has no other checkpoint yet" : "the newest good checkpoint is " + last_good_;
}

const std::string& Checkpointing::finish() {
  if (saver_.is_running()) wait();
  const bool is_memory = last_error_ && last_error_->code() == ErrorCode::out_of_memory;
  require(!last_error_, is_memory ? ErrorCode::out_of_memory : ErrorCode::system_call,
          "the last checkpoint, of step {}, could not be written: {}; {}", running_.step,
          last_error_ ? last_error_->what() : "", last_good_text());
  return last_good_;
}

}  // namespace lockstep::train
