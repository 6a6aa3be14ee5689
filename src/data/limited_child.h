// Runs a check in a child process with limits on memory and time: a library that parses a foreign file may crash,
// loop or ask for all memory there without harm to this process (DESIGN, decision 11).
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "lockstep/error.h"

namespace lockstep::data {

struct ChildVerdict {
  bool good = false;
  std::optional<ErrorCode> code;  // of the Error that `check` threw
  std::string sentence;           // its text, or how the child ended
};

/// `check` says that all is well by returning. It runs in a fork of this process: it must touch neither MPI nor
/// threads, and what it changes in memory is lost.
ChildVerdict run_in_limited_child(const std::function<void()>& check);

}  // namespace lockstep::data
