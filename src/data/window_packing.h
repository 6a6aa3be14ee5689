// Packs whole documents into windows: first fit, in the order of the documents. Each document is put into the oldest
// open window in which it has room. If there is none, a new window is opened, and the oldest is closed if more than
// kOpenWindows would be open. The result depends on the lengths and their order only, and windows follow each other in
// about the order of the documents. The time is proportional to the number of documents.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::data {

inline constexpr std::size_t kOpenWindows = 64;

class WindowPacking {
 public:
  WindowPacking() = default;
  /// Packs documents with these lengths. None of them is longer than a window.
  WindowPacking(std::span<const std::uint32_t> lengths, std::uint32_t window);

  std::size_t n_windows() const { return begins_.empty() ? 0 : begins_.size() - 1; }
  /// The documents of a window, as numbers in `lengths`, ascending.
  std::span<const std::uint32_t> documents(std::size_t window) const {
    return std::span(order_).subspan(begins_[window], begins_[window + 1] - begins_[window]);
  }

 private:
  std::vector<std::uint32_t> order_;  // documents, window after window
  std::vector<std::size_t> begins_;   // of each window in order_, and the end
};

}  // namespace lockstep::data
