#include "base/failure.h"

#include <atomic>
#include <exception>
#include <utility>

namespace lockstep {
namespace {

std::function<void()>& registered() {
  static std::function<void()> action;
  return action;
}
std::atomic<bool> is_noted{false};

}  // namespace

void on_failure(std::function<void()> action) { registered() = std::move(action); }

void note_failure() noexcept {
  if (!registered() || is_noted.exchange(true)) return;
  try {
    registered()();
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): see the header
  }
}

}  // namespace lockstep
