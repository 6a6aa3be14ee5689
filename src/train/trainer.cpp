#include "train/trainer.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/numbers.h"
#include "base/signals.h"
#include "checkpoint/huggingface.h"
#include "checkpoint/model_file.h"
#include "checkpoint/peft.h"
#include "checkpoint/tensor_names.h"
#include "config/parser.h"
#include "inference/adapters.h"
#include "lockstep/error.h"
#include "lockstep/log.h"
#include "lockstep/trace.h"
#include "models/llama_config.h"
#include "run/metrics.h"
#include "run/published_model.h"
#include "run/run_card.h"
#include "train/checkpointing.h"
#include "train/evaluation.h"
#include "train/recorder.h"
#include "train/schedule.h"
#include "train/skipped_steps.h"

namespace lockstep::train {
namespace {

/// Collective. All ranks have agreed to stop, and the training state is saved: the same command resumes the run.
int end_stopped(Session& session, Checkpointing& checkpointing, Recorder& recorder, std::int64_t steps_done) {
  checkpointing.finish();
  if (session.leader()) {
    if (steps_done > 0)
      log::info("stopped by a signal after step {}: rerun the command to resume", steps_done);
    else
      log::info("stopped by a signal before the first step: rerun the command to start");
    session.run.write_status("stopped");
  }
  try {
    recorder.finish("stopped", steps_done);
  } catch (const Error& error) {  // the run is saved, so the exit status reports success
    log::warning("the summary was not written: {}", error.what());
  }
  session.world.barrier();
  return kExitStopped;
}

/// "60 steps; runs/a"; with the reason if the run has done fewer steps than requested in this start.
std::string outcome(const Session& session, std::int64_t first_step, std::int64_t steps_done) {
  const bool ended_early = steps_done < session.last_step;
  if (steps_done == first_step)
    return fmt::format("nothing was left to do after step {}{}; {}", steps_done,
                       ended_early ? ": " + session.progress.patience.reason() : "", session.run.path());
  if (ended_early)
    return fmt::format("stopped early after {} of {} steps: {}; {}", steps_done, session.last_step,
                       session.progress.patience.reason(), session.run.path());
  return fmt::format("{}; {}", counted(steps_done, "step"), session.run.path());
}

/// The metadata in files of weights.
checkpoint::StateJson exported_state(const Session& session, std::int64_t steps_done) {
  checkpoint::StateJson state{{"model", checkpoint::StateJson(session.task->model_stamp())},
                              {"inference", checkpoint::StateJson(session.task->inference_stamp())},
                              {"precision", lockstep::name(session.config.precision)},
                              {"step", steps_done}};
  if (!session.base_hash.empty()) state["base"] = {{"hash", session.base_hash}};
  return state;
}

/// Writes a language model as a directory for transformers, or adapters as a directory for PEFT, with the tokenizer and
/// a model card. Returns what the user should know about it at the end of the log, if anything.
std::string write_language_model(const Session& session, std::int64_t steps_done, const std::string& name,
                                 checkpoint::WeightsOf weights, std::vector<checkpoint::NamedTensor> tensors) {
  const Config& config = session.config;
  run::Files files = session.model_files;
  models::LlamaConfig model =
      models::parse_llama_config(files.at(checkpoint::kHuggingFaceConfig), checkpoint::kHuggingFaceConfig);
  if (!config.model.lora.is_on()) {
    const std::vector<checkpoint::NamedTensor> carried = inference::carried_tensors(
        model, {}, {inference::base_of(config.model), config.model.initialize_from, session.run.file("model")});
    tensors.insert(tensors.end(), carried.begin(), carried.end());
    files[checkpoint::kHuggingFaceConfig] = models::to_json(model).dump(2) + "\n";
  }
  const checkpoint::StateJson state = exported_state(session, steps_done);
  run::add_answer_end(files, run::answer_end_of(state));
  files[checkpoint::kModelCard] = run::text_of(run::make_card({.config = config,
                                                               .model = model,
                                                               .files = files,
                                                               .data = session.data_sets,
                                                               .name = config.run.name,
                                                               .run = session.run.path(),
                                                               .configuration = config::learning_yaml(config),
                                                               .answer_end = run::answer_end_of(state),
                                                               .step = steps_done,
                                                               .steps_per_epoch = session.steps_per_epoch,
                                                               .averages = weights == checkpoint::WeightsOf::averages,
                                                               .slices = session.progress.slices,
                                                               .dtype = std::string(lockstep::name(DType::fp32)),
                                                               .versions = run::versions_json()}));
  const std::string directory = session.run.file(name);
  const auto max_shard_bytes = parse_byte_size(config.checkpoint.max_shard_size);
  checkpoint::HuggingFaceOptions options;
  options.max_shard_bytes = max_shard_bytes.value_or(options.max_shard_bytes);
  try {
    if (config.model.lora.is_on()) {
      files.erase(checkpoint::kHuggingFaceConfig);
      checkpoint::write_peft(directory, std::move(tensors), config.model.lora, inference::base_of(config.model), state,
                             files);
    } else {
      checkpoint::write_huggingface(directory, std::move(tensors), files, options);
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::data_exists) throw;
    return fmt::format(
        "{} was not written, so the trained model is in the last checkpoint only: {}; move it away and rerun the "
        "command",
        directory, error.what());
  }
  if (config.model.license.empty() && weights == checkpoint::WeightsOf::model)
    log::info("{}", run::license_note(directory));
  return "";
}

/// Writes the model of the last checkpoint: as a directory if the task names the files of one, otherwise as a
/// .safetensors file. `name` is that of the file or directory in RUN. Returns what write_language_model() does.
std::string write_model(const Session& session, const std::string& last, std::int64_t steps_done,
                        const std::string& name, checkpoint::WeightsOf weights) {
  std::vector<checkpoint::NamedTensor> tensors = checkpoint::read_model_file(last, weights).tensors;
  if (!session.model_files.empty()) return write_language_model(session, steps_done, name, weights, std::move(tensors));
  checkpoint::write_safetensors(
      session.run.file(name + ".safetensors"),
      checkpoint::to_torchvision(checkpoint::from_torchvision(std::move(tensors)), steps_done),
      checkpoint::export_metadata(exported_state(session, steps_done)));
  return "";
}

/// Collective. The run is complete: rank 0 writes the trained model. `first_step`: steps that were done before this
/// start.
int end_done(Session& session, Checkpointing& checkpointing, Recorder& recorder, std::int64_t first_step,
             std::int64_t steps_done) {
  const std::string last = checkpointing.finish();
  std::vector<std::string> warnings;
  if (session.leader()) {
    const auto write = [&](const std::string& name, checkpoint::WeightsOf weights) {
      warnings.push_back(write_model(session, last, steps_done, name, weights));
    };
    write("model", checkpoint::WeightsOf::model);
    if (session.plan->averages() == Averages::kept) {
      write("model_ema", checkpoint::WeightsOf::averages);
    } else {  // removes files from before ema.decay was set to 0
      std::filesystem::remove(session.run.file("model_ema.safetensors"));
      std::filesystem::remove_all(session.run.file("model_ema"));
    }
  }
  if (session.leader()) session.run.write_status("done");
  recorder.finish("done", steps_done);
  if (session.leader()) log::info("done: {}", outcome(session, first_step, steps_done));
  for (const std::string& warning : warnings)
    if (!warning.empty()) log::warning("{}", warning);
  session.world.barrier();
  return kExitDone;
}

/// Collective. Repeats an evaluation that a signal interrupted when the run was last stopped, and saves its result.
/// False if a signal has asked a rank to stop, before the first step or during that evaluation.
bool may_start(Session& session, Validation& validation, Checkpointing& checkpointing) {
  const std::int64_t step = session.progress.step;
  const bool repeats_evaluation = validation.was_interrupted();
  const bool is_over = (step >= session.last_step || validation.ends_run()) && !repeats_evaluation;
  if (!is_over && session.world.any(stop_requested())) return false;
  if (!repeats_evaluation) return true;
  if (!validation.run(step)) return false;
  checkpointing.save(step, validation.quality(true));
  return true;
}

class Trainer {
 public:
  Trainer(Session& session, const run::RunLock& lock)
      : s_(session),
        recorder_(session),
        schedule_(session.config.schedule, session.config.optimizer.learning_rate, session.steps_per_epoch,
                  session.config.train.epochs,
                  learning_rate_factor(session.config.optimizer, session.config.train.global_batch)),
        skipped_(session.config.train, session.last_step, session.leader()),
        loader_(session.task->train_set(), session.loader_options()),
        validation_(session, recorder_),
        checkpointing_(session, recorder_, lock) {}

  /// The rank that the others waited for.
  std::optional<run::SlowRank> slow_rank() const { return recorder_.slow_rank(); }

  /// Runs a whole training. Steps are numbered from 0. The result of a step is read one step later, so that the host
  /// does not wait for the device, unless something must be done between two steps.
  int run() {
    const std::int64_t first = s_.progress.step;
    if (!may_start(s_, validation_, checkpointing_)) return end_stopped(s_, checkpointing_, recorder_, first);
    recorder_.restart_clock();
    std::int64_t step = first;
    for (; step < s_.last_step && !validation_.ends_run(); ++step) {
      run_step(step);
      if (step > first) read_result(step - 1, 1);
      if (!pauses_after(step)) continue;
      read_result(step, 0);
      recorder_.pause();
      const bool evaluated = !stopping_ && validation_.is_due_after(step) && evaluate(step + 1);
      if (ends_epoch(step))
        recorder_.epoch(step, schedule_.learning_rate(step), evaluated ? &validation_.sums() : nullptr);
      const std::optional<double> quality = validation_.quality(evaluated);
      // This makes `best` the best of all evaluations, and not only of those after which a checkpoint was due.
      const bool saves = saves_after(step) || (evaluated && checkpointing_.would_be_best(quality));
      if (saves || checks_after(step)) require_equal_replicas(s_.world, s_.replica->hash(), step + 1);
      if (saves) checkpointing_.save(step + 1, quality);
      const bool is_complete = ends_after(step) && (evaluated || !s_.task->validation_set());
      if (stopping_ && !is_complete) return end_stopped(s_, checkpointing_, recorder_, step + 1);
      recorder_.restart_clock();
    }
    skipped_.warn_at_end();
    return end_done(s_, checkpointing_, recorder_, first, step);
  }

 private:
  void run_step(std::int64_t step) {
    const trace::Span span(trace::Kind::step, "step", step + 1);
    const BatchShape shape = s_.shape_of(step);
    const double waited_before = loader_.wait_seconds();
    StepFlags flags{.stop_requests = stop_requested() ? 1.0 : 0.0};
    checkpointing_.write_flags(step, flags);
    recorder_.write_flags(flags);
    const StepScalars scalars = make_step_scalars(
        {.step = step,
         .optimizer_begin = s_.progress.optimizer_begin,
         .epoch = step / s_.steps_per_epoch,
         .nominal_count = s_.task->nominal_count(shape.global_batch),
         .learning_rate = schedule_.learning_rate(step),
         .loss_limit = skipped_.loss_limit(),
         .average_momentum = average_momentum(s_.config.ema, step, schedule_.warmup_steps(), s_.steps_per_epoch)},
        s_.config.optimizer);
    Replica& replica = *s_.replica;
    replica.begin_step(shape, scalars, flags);
    for (int i = 0; i < shape.n_micro_batches; ++i) {
      replica.run(loader_.next());
    }
    clock_[step & 1] = recorder_.lap();
    clock_[step & 1].loader = loader_.usage();
    clock_[step & 1].data_wait_seconds = clock_[step & 1].loader.wait_seconds - waited_before;
  }

  /// Reads, counts and reports the result of a step, once.
  void read_result(std::int64_t step, int steps_ago) {
    if (step <= last_read_) return;
    last_read_ = step;
    const StepResult result = s_.replica->result(steps_ago);
    const double learning_rate = schedule_.learning_rate(step);
    stopping_ = stopping_ || result.flags.stop_requests > 0;
    skipped_.add(step, result, learning_rate);
    recorder_.step(step, result, learning_rate, clock_[step & 1]);
    checkpointing_.read_flags(step, result.flags);
  }

  bool evaluate(std::int64_t steps_done) {
    const bool is_complete = validation_.run(steps_done);
    stopping_ = !is_complete;
    return is_complete;
  }

  bool ends_epoch(std::int64_t step) const { return (step + 1) % s_.steps_per_epoch == 0; }
  bool ends_after(std::int64_t step) const { return step + 1 == s_.last_step || validation_.ends_run(); }
  bool saves_after(std::int64_t step) const { return stopping_ || ends_after(step) || checkpointing_.due_after(step); }
  bool checks_after(std::int64_t step) const {
    return is_multiple(step + 1, s_.config.train.check_replicas_every_steps);
  }
  bool pauses_after(std::int64_t step) const {
    const bool evaluates = !stopping_ && validation_.is_due_after(step);
    return ends_epoch(step) || evaluates || checks_after(step) || saves_after(step);
  }

  Session& s_;
  Recorder recorder_;
  Schedule schedule_;
  SkippedSteps skipped_;
  data::Loader loader_;
  Validation validation_;
  Checkpointing checkpointing_;
  StepClock clock_[2];           // of the last two steps
  std::int64_t last_read_ = -1;  // the last step whose result was read
  bool stopping_ = false;        // a signal asked some rank to stop; the same on all ranks
};

}  // namespace

Outcome train(Session& session, const run::RunLock& lock) {
  Trainer trainer(session, lock);
  const int status = trainer.run();
  return {.status = status, .slow_rank = trainer.slow_rank()};
}

}  // namespace lockstep::train
