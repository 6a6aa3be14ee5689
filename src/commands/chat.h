// `lockstep generate --chat`: a conversation in the terminal.
#pragma once

#include <cstdint>
#include <string>

#include "commands/model_argument.h"
#include "generate/generator.h"
#include "lockstep/backend.h"

namespace lockstep::commands {

/// Of `lockstep generate`, with or without --chat.
struct GenerateArguments {
  ModelRequest model{};
  std::string prompt{}, prompts{}, json{};
  bool chat = false, ignores_end = false, reports_speed = false;
  std::string system{}, chat_template{};
  std::int64_t batch = 8;  // prompts at the same time
  generate::GeneratorOptions options{};
};

/// Reads messages from standard input, one per line, and prints the replies until the input ends. Returns the exit
/// status.
int converse(const GenerateArguments& arguments, TextModelSource& source, Backend& backend);

/// Prints at once, as it is.
void print(const std::string& text);

}  // namespace lockstep::commands
