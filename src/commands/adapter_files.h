// lockstep checkpoint export | import | merge, of adapters (model.lora).
#pragma once

#include <string>

#include "commands/convert.h"

namespace lockstep::commands {

/// Whether a checkpoint has adapters, and nothing else of a model.
bool is_adapter_file(const std::string& path);
/// A checkpoint with adapters as a directory of PEFT.
int export_adapters(const std::string& source, const std::string& target, const ExportOptions& options);
/// A directory of PEFT as a checkpoint. `base`: the model that they belong to; empty: the one that they name.
int import_adapters(const std::string& source, const std::string& target, const std::string& base);
/// The model `base` with adapters added to its weights: a checkpoint, a .safetensors file or a directory.
int merge_files(const std::string& base, const std::string& adapters, const std::string& target,
                const ExportOptions& options);

}  // namespace lockstep::commands
