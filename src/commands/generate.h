// The arguments of `lockstep generate`, for its files.
#pragma once

#include <cstdint>
#include <string>

#include "commands/generate_model.h"
#include "generate/generator.h"

namespace lockstep::commands {

struct GenerateArguments {
  ModelRequest model{};
  std::string prompt{}, prompts{}, json{};
  bool chat = false, ignores_end = false, reports_speed = false;
  std::string system{}, chat_template{};
  std::int64_t batch = 8;  // prompts at the same time
  generate::GeneratorOptions options{};
};

}  // namespace lockstep::commands
