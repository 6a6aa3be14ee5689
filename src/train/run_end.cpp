#include "train/run_end.h"

#include <nlohmann/json.hpp>

#include "base/stop_signal.h"
#include "checkpoint/model_file.h"
#include "lockstep/error.h"
#include "lockstep/log.h"

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
  recorder.finish("stopped", steps_done);
  session.world.barrier();
  return kExitStopped;
}

int end_done(Session& session, Checkpointing& checkpointing, Recorder& recorder) {
  checkpointing.finish();
  if (session.leader()) {
    const checkpoint::StateJson state{{"model", checkpoint::StateJson(session.task->model_stamp())},
                                      {"inference", checkpoint::StateJson(session.task->inference_stamp())},
                                      {"precision", name(session.config.precision)},
                                      {"step", session.last_step}};
    checkpoint::write_safetensors(session.run.file("model.safetensors"),
                                  session.replica->named_tensors(session.last_step),
                                  checkpoint::export_metadata(state));
    session.run.write_status("done");
  }
  recorder.finish("done", session.last_step);
  session.world.barrier();
  return kExitDone;
}

}  // namespace lockstep::train
