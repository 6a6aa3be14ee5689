// What follows from keys that have changed when a run is resumed: which changes are rejected, and which state of the
// checkpoint is no longer used. The table of keys (config/table.h) says what may change.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "checkpoint/reader.h"
#include "lockstep/config.h"

namespace lockstep::train {

/// A configuration, and the file that contains it.
struct Recorded {
  std::string yaml, source;
};
/// Throws Error (config_conflict, resume_changed) unless every change since `before` may happen. Returns the changes,
/// as notes for the banner. `file`: the checkpoint, for messages.
std::vector<std::string> require_allowed_changes(const Recorded& before, const Config& now,
                                                 const std::vector<std::string>& allow_change, const std::string& file);

/// What a checkpoint records of the data set.
struct DataStamp {
  const nlohmann::ordered_json& inference;  // Task::inference_stamp()
  const std::string& content_hash;          // DatasetInfo::content_hash
};
/// The data set may have been replaced by another one with the same path. Throws Error (resume_changed) if what the
/// checkpoint `file` records of its data differs from `data`, although no key of `data` has changed since, unless
/// data.train may change.
void require_same_data(const checkpoint::StateJson& state, const DataStamp& data, const Config& now,
                       const std::vector<std::string>& allow_change, const std::string& file);

/// How the optimizer of a resumed run begins, and the averages of the weights.
struct OptimizerStart {
  std::vector<checkpoint::TensorTarget> targets;  // of all tensors to read; the others keep their zeros
  std::int64_t begin = 0;                         // the step at which the state of the optimizer was zero
  std::string note;                               // empty: it continues with the state of the checkpoint
  bool starts_averages = false;                   // from the weights, since the checkpoint has no averages
};
/// Another kind of optimizer begins with a fresh state. If the kind is the same, tensors that the checkpoint lacks
/// begin with zeros, for example those of the momentum if it was 0 before.
OptimizerStart optimizer_start(checkpoint::Reader& reader, const Config& now,
                               std::vector<checkpoint::TensorTarget> targets);

/// Whether the loss scale of a checkpoint is still in effect: no key of loss_scale has changed since.
bool keeps_loss_scale(const checkpoint::StateJson& state, const Config& now);

}  // namespace lockstep::train
