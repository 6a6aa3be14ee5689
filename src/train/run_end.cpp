#include "train/run_end.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/byte_size.h"
#include "base/number_text.h"
#include "base/stop_signal.h"
#include "checkpoint/huggingface.h"
#include "checkpoint/model_file.h"
#include "checkpoint/peft.h"
#include "config/parser.h"
#include "inference/adapters.h"
#include "lockstep/error.h"
#include "lockstep/log.h"
#include "models/llama_config.h"
#include "run/metrics.h"
#include "run/published_model.h"
#include "run/run_card.h"

namespace lockstep::train {

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

namespace {

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
                                 checkpoint::WeightsOf weights) {
  const Config& config = session.config;
  run::Files files = session.model_files;
  const models::LlamaConfig model =
      models::parse_llama_config(files.at(checkpoint::kHuggingFaceConfig), checkpoint::kHuggingFaceConfig);
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
  std::vector<checkpoint::NamedTensor> tensors = session.replica->named_tensors(steps_done);
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

/// Writes the trained model: as a directory if the task names the files of one, otherwise as a .safetensors file.
/// `name` is that of the file or directory in RUN. Returns what write_language_model() does.
std::string write_model(const Session& session, std::int64_t steps_done, const std::string& name,
                        checkpoint::WeightsOf weights) {
  if (!session.model_files.empty()) return write_language_model(session, steps_done, name, weights);
  checkpoint::write_safetensors(session.run.file(name + ".safetensors"), session.replica->named_tensors(steps_done),
                                checkpoint::export_metadata(exported_state(session, steps_done)));
  return "";
}

}  // namespace

int end_done(Session& session, Checkpointing& checkpointing, Recorder& recorder, std::int64_t first_step,
             std::int64_t steps_done) {
  checkpointing.finish();
  session.replica->gather_state(0);  // the parameters
  std::vector<std::string> warnings;
  if (session.leader()) warnings.push_back(write_model(session, steps_done, "model", checkpoint::WeightsOf::model));
  if (session.plan->averages() == Averages::kept) {
    session.replica->swap_averages();
    session.replica->gather_state(0);
    if (session.leader())
      warnings.push_back(write_model(session, steps_done, "model_ema", checkpoint::WeightsOf::averages));
  } else if (session.leader()) {  // removes files from before ema.decay was set to 0
    std::filesystem::remove(session.run.file("model_ema.safetensors"));
    std::filesystem::remove_all(session.run.file("model_ema"));
  }
  if (session.leader()) session.run.write_status("done");
  recorder.finish("done", steps_done);
  if (session.leader()) log::info("done: {}", outcome(session, first_step, steps_done));
  for (const std::string& warning : warnings)
    if (!warning.empty()) log::warning("{}", warning);
  session.world.barrier();
  return kExitDone;
}

}  // namespace lockstep::train
