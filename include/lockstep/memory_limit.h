// The limits on the memory of this process: `ulimit -v`, `ulimit -d`, and its control groups (versions 1 and 2).
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

namespace lockstep {

struct MemoryLimit {
  std::string_view what;  // "`ulimit -v` limits the address space of this process"; empty: there is no limit
  std::uint64_t limit_bytes = std::numeric_limits<std::uint64_t>::max(), used_bytes = 0, peak_bytes = 0;

  std::uint64_t free_bytes() const { return limit_bytes - (used_bytes < limit_bytes ? used_bytes : limit_bytes); }
  /// Whether so little was left at some time that what a library allocates may have failed.
  bool is_reached() const;
};
/// The tighter one of `ulimit -v` and `ulimit -d`. Allocates nothing, so that a signal handler can call it.
MemoryLimit limit_of_process() noexcept;

/// ": `ulimit -v` limits the address space of this process to 390.6 MiB, of which 381.0 MiB were used": that limit if
/// it is reached, or else the tightest one of the process and its control groups; empty if there is none.
std::string memory_limit_in_message();
/// SIZE_MAX: there is no limit.
std::size_t memory_left_to_control_groups();

/// Throws out_of_memory unless the process can map this much. For libraries that crash when an allocation fails.
void require_mappable(std::size_t size_bytes, std::string_view purpose);

/// How many processes of this node the system has killed for lack of memory since it was started.
std::uint64_t n_killed_for_memory();

}  // namespace lockstep
