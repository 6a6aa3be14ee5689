#include "test/support/recording.h"

#include <fmt/format.h>

#include <utility>

namespace lockstep::test {

void Recording::add(Call call) {
  const std::lock_guard lock(mutex_);
  calls_.push_back(std::move(call));
}

std::vector<Call> Recording::calls() const {
  const std::lock_guard lock(mutex_);
  return calls_;
}

void Recording::clear() {
  const std::lock_guard lock(mutex_);
  calls_.clear();
}

std::string Recording::text() const {
  std::string out;
  for (const Call& call : calls())
    out +=
        fmt::format("{} stream {} event {} {} {}\n", call.what, call.stream, call.event, call.target, call.size_bytes);
  return out;
}

}  // namespace lockstep::test
