// Files: descriptors that close themselves, complete reads and writes at offsets, and files that appear under their
// name only when they are complete (DESIGN, decision 10). This is the only place that syncs and renames a new file.
//
// A file that is being written has a partial name in the final folder, so that rename() is atomic. publish() syncs the
// file, renames it and syncs the directory. Offsets and sizes are in bytes. Every failure is an Error that names the
// file and the reason that the system gave. For a file that is read, its code is an argument, since the remedy depends
// on what the file is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <system_error>

#include "lockstep/error.h"
#include "lockstep/handle.h"

namespace lockstep {

struct DescriptorTraits {
  using Type = int;
  static Type null() { return -1; }
  static void close(Type descriptor);
};
using Descriptor = Handle<DescriptorTraits>;

/// The message for an errno value. Thread-safe.
std::string system_text(int error_number);

/// "runs/a is a link to b, which does not exist", if the path or one of its folders is such a link; otherwise empty.
std::string broken_link_text(const std::string& path);

/// Why a folder could not be created, with the remedy if a broken link is the reason.
std::string folder_problem(const std::string& path, const std::error_code& error);

/// Whether the path exists, and whether it is a folder. Also false if that cannot be determined, or if the path is
/// too long for one: opening it then reports why.
bool is_there(const std::string& path);
bool is_folder(const std::string& path);

/// open(2) with these flags, O_CLOEXEC and mode 0666.
Descriptor open_file(const std::string& path, int flags, ErrorCode code = ErrorCode::system_call);
/// What a shell makes of `<(command)` and of standard input: /dev/fd/63, /dev/stdin.
enum class OwnPipe : std::uint8_t { refused, accepted };
/// Throws if reading the path could wait or never end: unless it is a regular file, or there is no such file, or a pipe
/// that this process already has open. Every path that a user names is checked here before it is read.
void require_regular_file(const std::string& path, ErrorCode code = ErrorCode::system_call,
                          OwnPipe own_pipe = OwnPipe::refused);
/// Opens for reading what require_regular_file() accepts.
Descriptor open_regular_file(const std::string& path, ErrorCode code = ErrorCode::system_call,
                             OwnPipe own_pipe = OwnPipe::refused);
std::uint64_t size_bytes(const Descriptor& file, const std::string& path);

// ---- Reading and writing --------------------------------------------------------------------------------------------
// `path` is for messages. A short read or write is an error.

enum class ReadOutcome : std::uint8_t { complete, end_of_file, failed };
/// Fills `target` from `offset`. Thread-safe, without allocation. After `failed`, errno has the reason.
ReadOutcome try_read_at(const Descriptor& file, std::span<std::byte> target, std::uint64_t offset);
void read_at(const Descriptor& file, const std::string& path, std::span<std::byte> target, std::uint64_t offset,
             ErrorCode code = ErrorCode::system_call);
void write_at(const Descriptor& file, const std::string& path, std::span<const std::byte> bytes, std::uint64_t offset);
/// Writes all of `content` at the descriptor's position, with a single write() unless the system interrupts it.
void write_fully(int descriptor, std::string_view content, const std::string& path);
void set_length(const Descriptor& file, const std::string& path, std::uint64_t length_bytes);
void sync(const Descriptor& file, const std::string& path);

/// Reads the whole file, which may be a pipe that this process has open. Throws if it has more than `max_bytes`.
std::string read_file(const std::string& path, std::uint64_t max_bytes = std::numeric_limits<std::uint64_t>::max(),
                      ErrorCode code = ErrorCode::system_call);

// ---- Files that appear when they are complete -----------------------------------------------------------------------

/// "PATH.partial", or a hash if that is too long for a name: for a file that the processes of one job write together.
std::string partial_name(const std::string& path);
bool is_partial_name(const std::string& path);
/// Syncs `partial`, renames it to `path` and syncs the directory.
void publish(const std::string& partial, const std::string& path);
/// Syncs the directory after a symbolic link was created, since the link itself cannot be synced.
void publish_link(const std::string& partial, const std::string& path);
/// Does nothing if there is no such file. An error is printed.
void remove_partial(const std::string& partial) noexcept;

/// How a PendingFile names its partial file. `fixed` is partial_name(path): the next attempt replaces what a crash
/// left. `of_process` also contains the process id: several processes may write the same file at once, and the last to
/// publish wins.
enum class PartialName : std::uint8_t { fixed, of_process };

/// A file that one process writes. The destructor removes what was not published. The constructor throws if there is a
/// folder, a device or a pipe of that name, which a rename would replace.
class PendingFile {
 public:
  explicit PendingFile(std::string path, PartialName name = PartialName::of_process);
  ~PendingFile();
  PendingFile(const PendingFile&) = delete;
  PendingFile& operator=(const PendingFile&) = delete;

  const std::string& path() const { return path_; }
  const std::string& partial_path() const { return partial_path_; }
  /// Creates the file under its partial name, or empties it.
  Descriptor create() const;
  void publish();

 private:
  std::string path_, partial_path_;
  bool is_published_ = false;
};

/// A file without a name in the folder of `path`, for reading and writing. Nothing is left of it when it is closed,
/// however the process ends.
Descriptor create_unnamed_file(const std::string& path);

/// Writes a small file as a whole. When this throws, `path` is as it was before.
void replace_file(const std::string& path, std::string_view content);

/// A directory that one process fills under the name partial_name(path). publish() gives it its name and removes a
/// directory that had the name before; the two are exchanged in one step where the file system can do that. The
/// constructor removes what a crash left under the partial name, the destructor what was not published.
class PendingDirectory {
 public:
  explicit PendingDirectory(const std::string& path);
  ~PendingDirectory();
  PendingDirectory(const PendingDirectory&) = delete;
  PendingDirectory& operator=(const PendingDirectory&) = delete;

  const std::string& partial_path() const { return partial_path_; }
  /// The files in it must have been published, each on its own: that syncs them.
  void publish();

 private:
  void replace();

  std::string path_, partial_path_, old_path_;
  bool is_published_ = false;
};

}  // namespace lockstep
