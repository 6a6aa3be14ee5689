// LD_PRELOAD: makes calls on files below a path fail, or ends the process at one of them. Variables:
//
//   FAULT_PATH    calls on files whose path holds this count (nothing set: no faults)
//   FAULT_CALLS   "pwrite,fsync": these calls alone; else open (for writing), write, pwrite, fsync, ftruncate, rename,
//                 symlink, unlink. pread is hit only where it is named
//   FAULT_FIRST   number of the first call that is hit, from 1; FAULT_COUNT: how many (1; 0: all from there on)
//   FAULT_ERROR   ENOSPC, EDQUOT, EIO, EROFS; KILL: the process ends before the call; REMOVE: FAULT_PATH, a folder, is
//                 removed before the call
//   FAULT_RANK    only on this rank of an mpirun
//   FAULT_WHEN    only once this file exists
//
// fault_reload() reads them again and counts from 1. What the C library does inside stdio is not seen.
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>

namespace {

struct Fault {
  std::string path, calls, error, when;
  long first = 1, count = 1;
  bool is_on = false;
};

std::string variable(const char* name, const char* otherwise = "") {
  const char* value = std::getenv(name);
  return value != nullptr ? value : otherwise;
}

Fault read_fault() {
  Fault f{.path = variable("FAULT_PATH"),
          .calls = "," + variable("FAULT_CALLS") + ",",
          .error = variable("FAULT_ERROR"),
          .when = variable("FAULT_WHEN")};
  f.first = std::atol(variable("FAULT_FIRST", "1").c_str());
  f.count = std::atol(variable("FAULT_COUNT", "1").c_str());
  const std::string rank = variable("FAULT_RANK");
  f.is_on = !f.path.empty() && (rank.empty() || rank == variable("OMPI_COMM_WORLD_RANK"));
  return f;
}

Fault& fault() {
  static Fault f = read_fault();
  return f;
}

std::atomic<long> n_calls{0};
thread_local bool inside = false;

bool is_named(const char* call) { return fault().calls.find("," + std::string(call) + ",") != std::string::npos; }

/// True where the call must fail; errno is set.
bool hits(const char* call, const std::string& path) {
  const Fault& f = fault();
  if (!f.is_on || inside || path.find(f.path) == std::string::npos) return false;
  if (f.calls != ",," && !is_named(call)) return false;
  if (!f.when.empty() && ::access(f.when.c_str(), F_OK) != 0) return false;
  const long number = ++n_calls;
  if (number < f.first || (f.count > 0 && number >= f.first + f.count)) return false;
  if (f.error == "KILL") ::kill(::getpid(), SIGKILL);
  if (f.error == "REMOVE") {
    inside = true;
    std::error_code ignored;
    std::filesystem::remove_all(f.path, ignored);
    inside = false;
    return false;
  }
  errno = f.error == "ENOSPC" ? ENOSPC : f.error == "EDQUOT" ? EDQUOT : f.error == "EROFS" ? EROFS : EIO;
  return true;
}

std::string path_of(int descriptor) {
  char path[PATH_MAX];
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  const ssize_t n = ::readlink(link.c_str(), path, sizeof path);
  return n > 0 ? std::string(path, static_cast<std::size_t>(n)) : "";
}

template <typename Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

int open_next(const char* name, const char* path, int flags, mode_t mode) {
  if ((flags & O_ACCMODE) != O_RDONLY && hits("open", path)) return -1;
  return next<int (*)(const char*, int, ...)>(name)(path, flags, mode);
}

}  // namespace

extern "C" {

void fault_reload() {
  fault() = read_fault();
  n_calls = 0;
}

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  return open_next("open", path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  return open_next("open64", path, flags, mode);
}
ssize_t write(int descriptor, const void* bytes, size_t n) {
  if (hits("write", path_of(descriptor))) return -1;
  return next<ssize_t (*)(int, const void*, size_t)>("write")(descriptor, bytes, n);
}
ssize_t pwrite(int descriptor, const void* bytes, size_t n, off_t at) {
  if (hits("pwrite", path_of(descriptor))) return -1;
  return next<ssize_t (*)(int, const void*, size_t, off_t)>("pwrite")(descriptor, bytes, n, at);
}
ssize_t pread(int descriptor, void* bytes, size_t n, off_t at) {
  if (is_named("pread") && hits("pread", path_of(descriptor))) return -1;
  return next<ssize_t (*)(int, void*, size_t, off_t)>("pread")(descriptor, bytes, n, at);
}
ssize_t pread64(int descriptor, void* bytes, size_t n, off64_t at) { return pread(descriptor, bytes, n, at); }
int fsync(int descriptor) {
  if (hits("fsync", path_of(descriptor))) return -1;
  return next<int (*)(int)>("fsync")(descriptor);
}
int ftruncate(int descriptor, off_t length) noexcept {
  if (hits("ftruncate", path_of(descriptor))) return -1;
  return next<int (*)(int, off_t)>("ftruncate")(descriptor, length);
}
int rename(const char* from, const char* to) noexcept {
  if (hits("rename", to)) return -1;
  return next<int (*)(const char*, const char*)>("rename")(from, to);
}
int symlink(const char* target, const char* path) noexcept {
  if (hits("symlink", path)) return -1;
  return next<int (*)(const char*, const char*)>("symlink")(target, path);
}
int unlink(const char* path) noexcept {
  if (hits("unlink", path)) return -1;
  return next<int (*)(const char*)>("unlink")(path);
}
}
