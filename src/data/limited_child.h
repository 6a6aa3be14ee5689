// Runs a function in a child process with limits on memory and time. A library that parses a damaged or hostile file
// may crash, loop, request all memory or overwrite memory there without harm to this process (DESIGN, decision 11).
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "lockstep/error.h"

namespace lockstep::data {

struct ChildVerdict {
  bool good = false;
  std::string result;             // what `read` returned
  std::optional<ErrorCode> code;  // of the Error that it threw
  std::string sentence;           // the text of that Error, or how the child ended
};

/// `read` reports success by returning. It runs in a fork of this process: it must use neither MPI nor threads, and
/// its changes to memory are lost. What it finds must therefore be in the text that it returns, which may have any
/// bytes. The child ends with this process, and when throw_if_stopped() throws here.
ChildVerdict run_in_limited_child(const std::function<std::string()>& read);

}  // namespace lockstep::data
