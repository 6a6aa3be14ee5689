// lockstep checkpoint export | import | merge, for adapters (model.lora).
#pragma once

#include <string>

#include "commands/convert.h"

namespace lockstep::commands {

/// Whether a checkpoint has only the adapters of a model.
bool is_adapter_file(const std::string& path);
/// Exports a checkpoint with adapters as a PEFT directory.
int export_adapters(const std::string& source, const std::string& target, const ExportOptions& options);
/// Imports the adapters of a PEFT directory as a checkpoint. `base`: the model to which they belong; empty: the one
/// that they name.
int import_adapters(const std::string& source, const std::string& target, const std::string& base);
/// The model `base` with adapters added to its weights: a checkpoint, a .safetensors file or a directory.
int merge_files(const std::string& base, const std::string& adapters, const std::string& target,
                const ExportOptions& options);

}  // namespace lockstep::commands
