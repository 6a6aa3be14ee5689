// Parses JSON so that a signal can end it, since a line of JSON can have 1 GiB.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string_view>
#include <utility>

#include "base/stop_signal.h"

namespace lockstep::data {

/// Iterates over characters. Every 1 MiB, it throws what throw_if_stopped() throws.
class StoppableIterator {
 public:
  using difference_type = std::ptrdiff_t;
  using value_type = char;
  using pointer = const char*;
  using reference = const char&;
  using iterator_category = std::forward_iterator_tag;

  explicit StoppableIterator(const char* at) : at_(at) {}
  reference operator*() const { return *at_; }
  StoppableIterator& operator++() {
    if ((reinterpret_cast<std::uintptr_t>(++at_) & ((1u << 20) - 1)) == 0) throw_if_stopped();
    return *this;
  }
  bool operator==(const StoppableIterator&) const = default;

 private:
  const char* at_;
};

/// Json::parse(text, callback...)
template <typename Json, typename... Callback>
Json parse_stoppable(std::string_view text, Callback&&... callback) {
  return Json::parse(StoppableIterator(text.data()), StoppableIterator(text.data() + text.size()),
                     std::forward<Callback>(callback)...);
}

}  // namespace lockstep::data
