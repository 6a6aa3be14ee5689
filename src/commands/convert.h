// lockstep checkpoint export | import: from and to the formats of other programs.
#pragma once

#include <cstdint>
#include <string>

#include "checkpoint/model_file.h"

namespace lockstep::commands {

/// What happens to a file or directory that exists under the name of the output.
enum class Existing : std::uint8_t { keep, replace };

struct ExportOptions {
  std::string dtype;  // of a directory: fp32, bf16 or fp16; empty: that of the imported directory, else fp32
  std::string files;  // for a directory: another one, whose tokenizer is copied; empty: that of the run
  Existing existing = Existing::keep;
  checkpoint::WeightsOf weights = checkpoint::WeightsOf::model;
};
/// A checkpoint as a .safetensors or .onnx file, or as a directory of Hugging Face.
int export_file(const std::string& source, const std::string& target, const ExportOptions& options);

enum class ImportFormat : std::uint8_t { automatic, llama2c };
/// A .safetensors file, a directory of Hugging Face, or a file of llama2.c as a checkpoint.
int import_file(const std::string& source, const std::string& target, ImportFormat format, Existing existing);

}  // namespace lockstep::commands
