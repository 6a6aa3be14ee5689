// Files that appear whole: written under a temporary name, synced, renamed, their directory synced. Offsets and sizes
// are in bytes. Every failure is an Error that names the file and the system's reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "lockstep/handle.h"

namespace lockstep::checkpoint {

struct DescriptorTraits {
  using Type = int;
  static Type null() { return -1; }
  static void close(Type descriptor);
};
using Descriptor = Handle<DescriptorTraits>;

Descriptor open_to_read(const std::string& path);
/// Makes the file, or empties the one that an interrupted save left.
Descriptor create_file(const std::string& path);
Descriptor open_to_write(const std::string& path);  // must exist

std::uint64_t size_bytes(const Descriptor& file, const std::string& path);
/// All of `bytes`, or throws: a short write or read is an error.
void write_at(const Descriptor& file, const std::string& path, std::span<const std::byte> bytes, std::uint64_t offset);
void read_at(const Descriptor& file, const std::string& path, std::span<std::byte> bytes, std::uint64_t offset);
void set_length(const Descriptor& file, const std::string& path, std::uint64_t length_bytes);
void synchronize(const Descriptor& file, const std::string& path);

/// The name that a file has until it is whole: beside it, so that rename() is atomic.
std::string partial_name(const std::string& path);
bool is_partial_name(const std::string& path);
/// partial_name(path) becomes `path`; durable when it returns.
void publish_file(const std::string& path);
void synchronize_directory_of(const std::string& path);
void remove_partial(const std::string& path) noexcept;

}  // namespace lockstep::checkpoint
