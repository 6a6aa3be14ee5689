// `lockstep generate --chat`: a conversation in the terminal.
#pragma once

#include "commands/generate.h"
#include "lockstep/backend.h"

namespace lockstep::commands {

/// Reads messages from standard input, one per line, and prints the replies until the input ends. Returns the exit
/// status.
int converse(const GenerateArguments& arguments, TextModelSource& source, Backend& backend);

}  // namespace lockstep::commands
