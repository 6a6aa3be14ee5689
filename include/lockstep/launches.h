// What a step launches, counted from the code that launches it: for predictions of its speed on a device that need not
// be here (`lockstep plan --device`, bench/gpu/model.py).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep {

class Stream;

/// A launch of a kernel, or a call of a library.
struct Launch {
  /// The way in which it works, which decides what part of the device's rates it reaches: "packs" (16-byte loads by a
  /// grid that fills the device), "matmul", ... Empty: it is not counted.
  std::string_view kind{};
  double bytes = 0;   // that it reads and writes: each tensor once per pass over it
  double flops = 0;   // multiplications and additions of matrix products
  double blocks = 0;  // of a kernel's grid
  double steps = 0;   // of the longest chain of loads that wait for each other, if it is long

  bool operator==(const Launch&) const = default;
};

/// Work of this thread that is collected, to be launched together (kernels/cuda/matmul_few_rows.h). Whatever else is
/// launched or listed calls launch_pending() first.
class PendingWork {
 public:
  /// Rows of an op that may be collected, at most. A node of a graph with so few may be computed while blocks still
  /// read the inputs of the node before it.
  static constexpr std::int64_t kFewRows = 8;

  virtual ~PendingWork() = default;
  /// From now on, work is collected. end() launches it, discard() forgets it.
  virtual void begin(Stream& stream) = 0;
  virtual void end() = 0;
  virtual void discard() noexcept = 0;
  virtual void launch_all() = 0;

 protected:
  static inline thread_local PendingWork* current_ = nullptr;
  friend void launch_pending();
};
inline void launch_pending() {
  if (PendingWork::current_ != nullptr) PendingWork::current_->launch_all();
}

/// While it exists, the launches of its thread are listed instead of made.
class LaunchList {
 public:
  LaunchList() : outer_(current_) { current_ = this; }
  ~LaunchList() { current_ = outer_; }
  LaunchList(const LaunchList&) = delete;
  LaunchList& operator=(const LaunchList&) = delete;

  /// Null: launches are made.
  static LaunchList* current() { return current_; }
  /// The launches that follow belong to this part of the step: "backward" of "layer1.0.conv1".
  void begin_part(std::string_view phase, const std::string& name) { part_ = {std::string(phase), name}; }
  void add(const Launch& launch) {
    launch_pending();
    entries_.push_back({launch, part_.first, part_.second});
  }

  struct Entry {
    Launch launch;
    std::string phase, part;
    bool operator==(const Entry&) const = default;
  };
  const std::vector<Entry>& entries() const { return entries_; }

 private:
  static inline thread_local LaunchList* current_ = nullptr;
  LaunchList* outer_;
  std::pair<std::string, std::string> part_;
  std::vector<Entry> entries_;
};

}  // namespace lockstep
