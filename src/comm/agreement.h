// A step that every rank does and any may fail at: all throw where one fails, so that none waits for it for ever.
#pragma once

#include <string>
#include <vector>

#include "lockstep/error.h"

namespace lockstep::comm {

/// Runs `step`, which returns a text or throws Error; gives every rank's text. `gather` is an all_gather of texts.
template <typename Gather, typename Step>
std::vector<std::string> all_agree(const Gather& gather, const std::string& who, const Step& step) {
  std::string mine;
  try {
    mine = fmt::format("+{}", step());
  } catch (const Error& e) {
    mine = fmt::format("-{}: {}", who, e.what());
  }
  std::vector<std::string> all = gather(mine);
  for (std::string& text : all) {
    require(text[0] == '+', ErrorCode::comm_shared_memory, "{}", text.substr(1));
    text.erase(0, 1);
  }
  return all;
}

}  // namespace lockstep::comm
