// Preloaded (LD_PRELOAD) into a rank: pread of the file that FAILING_READ names fails with EIO, as on an unreadable
// sector, once a file of that name with ".fails" behind it exists.
#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <string>

extern "C" ssize_t pread(int descriptor, void* target, size_t n_bytes, off_t offset) {
  using Pread = ssize_t (*)(int, void*, size_t, off_t);
  static const Pread real = reinterpret_cast<Pread>(::dlsym(RTLD_NEXT, "pread"));
  if (const char* failing = std::getenv("FAILING_READ")) {
    std::array<char, 4096> path{};
    const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
    if (::readlink(link.c_str(), path.data(), path.size() - 1) > 0 && std::string(path.data()) == failing &&
        ::access((std::string(failing) + ".fails").c_str(), F_OK) == 0) {
      errno = EIO;
      return -1;
    }
  }
  return real(descriptor, target, n_bytes, offset);
}
extern "C" ssize_t pread64(int descriptor, void* target, size_t n_bytes, off_t offset) {
  return pread(descriptor, target, n_bytes, offset);
}
