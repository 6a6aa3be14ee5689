// Runs a check in a child process with limits on memory and time. A library that parses a file of another program may
// crash, loop or request all memory there without harm to this process (DESIGN, decision 11).
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "lockstep/error.h"

namespace lockstep::data {

struct ChildVerdict {
  bool good = false;
  std::optional<ErrorCode> code;  // of the Error that `check` threw
  std::string sentence;           // the text of that Error, or how the child ended
};

/// `check` reports success by returning. It runs in a fork of this process: it must use neither MPI nor threads, and
/// its changes to memory are lost.
ChildVerdict run_in_limited_child(const std::function<void()>& check);

}  // namespace lockstep::data
