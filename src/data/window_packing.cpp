#include "data/window_packing.h"

#include <algorithm>
#include <deque>

namespace lockstep::data {

WindowPacking::WindowPacking(std::span<const std::uint32_t> lengths, std::uint32_t window) {
  struct Open {
    std::uint32_t room;
    std::vector<std::uint32_t> documents;
  };
  std::deque<Open> open;  // oldest first
  order_.reserve(lengths.size());
  const auto close_oldest = [&] {
    begins_.push_back(order_.size());
    order_.insert(order_.end(), open.front().documents.begin(), open.front().documents.end());
    open.pop_front();
  };
  for (std::uint32_t document = 0; document < lengths.size(); ++document) {
    auto place = std::ranges::find_if(open, [&](const Open& w) { return w.room >= lengths[document]; });
    if (place == open.end()) {
      if (open.size() == kOpenWindows) close_oldest();
      open.push_back({.room = window, .documents = {}});
      place = open.end() - 1;
    }
    place->room -= lengths[document];
    place->documents.push_back(document);
  }
  while (!open.empty()) close_oldest();
  begins_.push_back(order_.size());
}

}  // namespace lockstep::data
