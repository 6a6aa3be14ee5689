#include "train/run_end.h"

#include <nlohmann/json.hpp>

#include "base/stop_signal.h"
#include "checkpoint/huggingface.h"
#include "checkpoint/peft.h"
#include "lockstep/error.h"
#include "lockstep/log.h"
#include "train/adapters.h"

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
  } catch (const Error& error) {  // the run is saved, and that is what the exit status says
    log::warning("the summary was not written: {}", error.what());
  }
  session.world.barrier();
  return kExitStopped;
}

namespace {

/// "60 steps; runs/a"; with the reason, if the run has not made the steps that were asked for in this start.
std::string outcome(const Session& session, std::int64_t first_step, std::int64_t steps_done) {
  const bool ended_early = steps_done < session.last_step;
  if (steps_done == first_step)
    return fmt::format("nothing was left to do after step {}{}; {}", steps_done,
                       ended_early ? ": " + session.progress.patience.reason() : "", session.run.path());
  if (ended_early)
    return fmt::format("stopped early after {} of {} steps: {}; {}", steps_done, session.last_step,
                       session.progress.patience.reason(), session.run.path());
  return fmt::format("{} steps; {}", steps_done, session.run.path());
}

/// What files of weights record besides them.
checkpoint::StateJson exported_state(const Session& session, std::int64_t steps_done) {
  checkpoint::StateJson state{{"model", checkpoint::StateJson(session.task->model_stamp())},
                              {"inference", checkpoint::StateJson(session.task->inference_stamp())},
                              {"precision", lockstep::name(session.config.precision)},
                              {"step", steps_done}};
  if (!session.base_hash.empty()) state["base"] = {{"hash", session.base_hash}};
  return state;
}

/// The trained model, as the programs load it for which the task names files. `name`: of the file or directory in RUN.
void write_model(const Session& session, std::int64_t steps_done, const std::string& name) {
  std::map<std::string, std::string> files = session.task->model_files();
  std::vector<checkpoint::NamedTensor> tensors = session.replica->named_tensors(steps_done);
  const checkpoint::StateJson state = exported_state(session, steps_done);
  if (!files.empty()) {
    try {
      const Config::Model& model = session.config.model;
      if (model.lora.is_on()) {
        files.erase(checkpoint::kHuggingFaceConfig);
        checkpoint::write_peft(session.run.file(name), std::move(tensors), model.lora, base_of(model), state, files);
      } else {
        checkpoint::write_huggingface(session.run.file(name), std::move(tensors), files, {});
      }
    } catch (const Error& error) {
      if (error.code() != ErrorCode::data_exists) throw;
      log::warning("the trained model is in the last checkpoint only: {}", error.what());
    }
    return;
  }
  checkpoint::write_safetensors(session.run.file(name + ".safetensors"), tensors, checkpoint::export_metadata(state));
}

}  // namespace

int end_done(Session& session, Checkpointing& checkpointing, Recorder& recorder, std::int64_t first_step,
             std::int64_t steps_done) {
  checkpointing.finish();
  session.replica->gather_state(0);  // the parameters
  if (session.leader()) write_model(session, steps_done, "model");
  if (session.plan->averages() == Averages::kept) {
    session.replica->swap_averages();
    session.replica->gather_state(0);
    if (session.leader()) write_model(session, steps_done, "model_ema");
  }
  if (session.leader()) session.run.write_status("done");
  recorder.finish("done", steps_done);
  if (session.leader()) log::info("done: {}", outcome(session, first_step, steps_done));
  session.world.barrier();
  return kExitDone;
}

}  // namespace lockstep::train
