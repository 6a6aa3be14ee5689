// What `evaluate` and `predict` share: how an operand names a model or an override, how images become inputs if the
// model's file does not record it, and the backend that runs the model.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "checkpoint/model_file.h"
#include "lockstep/backend.h"
#include "lockstep/config.h"

namespace lockstep::commands {

/// False if the path cannot be inspected; opening it will then report the reason.
bool is_folder(const std::string& path);
/// Whether an operand is key=value. A file that exists may have a `=` in its name.
bool is_override(const std::string& operand);
/// Whether the overrides set the precision.
bool sets_precision(const std::vector<std::string>& overrides);
/// The best checkpoint of a run directory, or else its newest one. Throws cannot_open.
std::string checkpoint_of_run(const std::string& folder);

/// How images become inputs according to the configuration, for a file that does not record it.
struct ConfiguredImages {
  nlohmann::json inference;  // as a file records it
  std::string missing;       // keys that the configuration lacks, with examples of values; empty: it has all of them
};
ConfiguredImages configured_images(const Config& config);

struct ModelBackend {
  std::unique_ptr<Backend> backend;
  std::string warning;  // about the precision; empty: none
};
/// The backend for a model. If the user did not choose the precision, it becomes the one in which the model was
/// trained, or fp32 if the device lacks that. Throws not_supported if the device lacks the one that the user chose.
enum class PrecisionOf : std::uint8_t { user, model };
ModelBackend open_model_backend(Config& config, const checkpoint::ModelFile& file, PrecisionOf precision,
                                const BackendOptions& options);

}  // namespace lockstep::commands
