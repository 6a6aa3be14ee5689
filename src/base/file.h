// Small text files that are whole or absent, and descriptors that close themselves.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "lockstep/handle.h"

namespace lockstep {

struct DescriptorTraits {
  using Type = int;
  static Type null() { return -1; }
  static void close(Type descriptor);
};
using Descriptor = Handle<DescriptorTraits>;

/// open(2) with these flags, O_CLOEXEC and mode 0666. Throws Error (system_call).
Descriptor open_file(const std::string& path, int flags);

/// Writes `content` under a temporary name beside `path`, syncs it, renames it to `path` and syncs the directory.
/// Throws Error (system_call); then `path` is as it was before.
void replace_file(const std::string& path, std::string_view content);

/// Writes all of `content` to the descriptor, as a rule with one write(). Throws Error (system_call) naming `path`.
void write_fully(int descriptor, std::string_view content, const std::string& path);

/// The whole file. Throws Error (system_call); also where it has more than `max_bytes`, as a device has.
std::string read_file(const std::string& path, std::uint64_t max_bytes = std::numeric_limits<std::uint64_t>::max());

}  // namespace lockstep
