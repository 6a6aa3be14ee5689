// A library for LD_PRELOAD that makes file operations fail, kills the process at one of them or in a phase of the step,
// or corrupts a value. Environment variables:
//
//   FAULT_PATH    only operations on files whose path contains this count; if it is not set, none do
//   FAULT_CALLS   the calls that count, such as "pwrite,fsync"; by default open (for writing), write, pwrite, fsync,
//                 ftruncate, rename, symlink and unlink. These count only if they are named: pread; `exchange`, which
//                 is renameat2; `forward` and `backward`, which are oneDNN's executions of the forward primitives and
//                 of the gradients of a training step; `sum`, which is MPI_Isend of 4 KiB or more, as in a sum between
//                 nodes. KILL is useful with the last three, FLIP only with `forward`, NAN only with `backward`; there
//                 is no `forward` or `backward` without oneDNN (DNNL=0)
//   FAULT_FIRST   the number of the first call that is hit, from 1
//   FAULT_COUNT   the number of calls that are hit (by default 1; 0: all further ones)
//   FAULT_ERROR   ENOSPC, EDQUOT, EIO, EROFS or EINVAL: the call fails with this error. Before the call, KILL reports
//                 it and kills the process, TERM sends it SIGTERM, WAIT waits until the file FAULT_WHEN is gone, SLEEP
//                 sleeps for 5 ms, REMOVE removes the folder FAULT_PATH, FLIP flips the last bit of a weight, and NAN
//                 replaces a value of the incoming gradient
//   FAULT_RANK    only this rank of an mpirun is affected
//   FAULT_WHEN    only while this file exists
//   FAULT_CLOCK   std::chrono::steady_clock runs this many times as fast; threads that sleep until a given time sleep
//                 longer
//
// fault_reload() reads the variables again and restarts the count. Calls that the C library's stdio makes internally
// are not intercepted.
#include <dlfcn.h>
#include <fcntl.h>
#include <mpi.h>
#include <time.h>
#include <unistd.h>
#ifdef LOCKSTEP_DNNL
#include <dnnl.h>
#endif

#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <string>

namespace {

struct Fault {
  std::string path, calls, error, when;
  long first = 1, count = 1;
  bool is_enabled = false;
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
  f.is_enabled = rank.empty() || rank == variable("OMPI_COMM_WORLD_RANK");
  return f;
}

Fault& fault() {
  static Fault f = read_fault();
  return f;
}

std::atomic<long> n_calls{0};
thread_local bool inside = false;

bool is_named(const char* call) { return fault().calls.find("," + std::string(call) + ",") != std::string::npos; }

/// Counts a call. Returns true, with errno set, if it must fail.
bool hits(const char* call) {
  const Fault& f = fault();
  if (!f.is_enabled || inside) return false;
  if (!f.when.empty() && ::access(f.when.c_str(), F_OK) != 0) return false;
  const long number = ++n_calls;
  if (number < f.first || (f.count > 0 && number >= f.first + f.count)) return false;
  if (f.error == "KILL") {
    std::fprintf(stderr, "fault_injection: killed in %s\n", call);
    ::kill(::getpid(), SIGKILL);
  }
  if (f.error == "TERM") {
    ::raise(SIGTERM);
    return false;
  }
  if (f.error == "WAIT") {
    while (::access(f.when.c_str(), F_OK) == 0) ::usleep(10'000);
    return false;
  }
  if (f.error == "SLEEP") {
    ::usleep(5'000);
    return false;
  }
  if (f.error == "REMOVE") {
    inside = true;
    std::error_code ignored;
    std::filesystem::remove_all(f.path, ignored);
    inside = false;
    return false;
  }
  errno = f.error == "ENOSPC"   ? ENOSPC
          : f.error == "EDQUOT" ? EDQUOT
          : f.error == "EROFS"  ? EROFS
          : f.error == "EINVAL" ? EINVAL
                                : EIO;
  return true;
}

bool hits(const char* call, const std::string& path) {
  const Fault& f = fault();
  if (f.path.empty() || path.find(f.path) == std::string::npos) return false;
  return (f.calls == ",," || is_named(call)) && hits(call);
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

#ifdef LOCKSTEP_DNNL
/// "forward" or "backward"; null for primitives outside of training steps (reorders, evaluation).
const char* phase_of(const_dnnl_primitive_t primitive) {
  const_dnnl_primitive_desc_t description = nullptr;
  dnnl_prop_kind_t kind = dnnl_prop_kind_undef;
  next<decltype(&dnnl_primitive_get_primitive_desc)>("dnnl_primitive_get_primitive_desc")(primitive, &description);
  next<decltype(&dnnl_primitive_desc_query)>("dnnl_primitive_desc_query")(description, dnnl_query_prop_kind, 0, &kind);
  switch (kind) {
    case dnnl_forward_training:
      return "forward";
    case dnnl_backward:
    case dnnl_backward_data:
    case dnnl_backward_weights:
      return "backward";
    default:
      return nullptr;
  }
}

/// Null if the primitive has no such argument.
void* data_of(int argument, int n_arguments, const dnnl_exec_arg_t* arguments) {
  void* data = nullptr;
  for (const dnnl_exec_arg_t* a = arguments; a != arguments + n_arguments; ++a)
    if (a->arg == argument)
      next<decltype(&dnnl_memory_get_data_handle)>("dnnl_memory_get_data_handle")(a->memory, &data);
  return data;
}

void corrupt(int n_arguments, const dnnl_exec_arg_t* arguments) {
  auto* weight = static_cast<unsigned char*>(data_of(DNNL_ARG_WEIGHTS, n_arguments, arguments));
  auto* gradient = static_cast<float*>(data_of(DNNL_ARG_DIFF_DST, n_arguments, arguments));
  if (fault().error == "FLIP" && weight != nullptr) {
    *weight ^= 1;
    std::fprintf(stderr, "fault_injection: flipped a bit of a weight\n");
  } else if (fault().error == "NAN" && gradient != nullptr) {
    *gradient = std::numeric_limits<float>::quiet_NaN();
    std::fprintf(stderr, "fault_injection: put a NaN into a gradient\n");
  }
}
#endif

}  // namespace

std::chrono::steady_clock::time_point std::chrono::steady_clock::now() noexcept {
  static const long factor = std::atol(variable("FAULT_CLOCK", "1").c_str());
  const auto real = [] {
    timespec t{};
    ::clock_gettime(CLOCK_MONOTONIC, &t);
    return std::chrono::seconds(t.tv_sec) + std::chrono::nanoseconds(t.tv_nsec);
  };
  static const std::chrono::nanoseconds begin = real();
  return time_point(begin + (real() - begin) * factor);
}

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
int renameat2(int from_directory, const char* from, int to_directory, const char* to, unsigned flags) noexcept {
  if (is_named("exchange") && hits("exchange", to)) return -1;
  using Renameat2 = int (*)(int, const char*, int, const char*, unsigned);
  return next<Renameat2>("renameat2")(from_directory, from, to_directory, to, flags);
}
int symlink(const char* target, const char* path) noexcept {
  if (hits("symlink", path)) return -1;
  return next<int (*)(const char*, const char*)>("symlink")(target, path);
}
int unlink(const char* path) noexcept {
  if (hits("unlink", path)) return -1;
  return next<int (*)(const char*)>("unlink")(path);
}
#ifdef LOCKSTEP_DNNL
dnnl_status_t dnnl_primitive_execute(const_dnnl_primitive_t primitive, dnnl_stream_t stream, int n_arguments,
                                     const dnnl_exec_arg_t* arguments) {
  if (is_named("forward") || is_named("backward")) {
    const char* phase = phase_of(primitive);
    if (phase != nullptr && is_named(phase) && hits(phase)) corrupt(n_arguments, arguments);
  }
  return next<decltype(&dnnl_primitive_execute)>("dnnl_primitive_execute")(primitive, stream, n_arguments, arguments);
}
#endif
int MPI_Isend(const void* data, int n, MPI_Datatype type, int to, int tag, MPI_Comm group, MPI_Request* request) {
  if (n >= 4096 && is_named("sum")) hits("sum");
  return next<decltype(&MPI_Isend)>("MPI_Isend")(data, n, type, to, tag, group, request);
}
}
