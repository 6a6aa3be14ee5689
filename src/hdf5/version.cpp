#include "hdf5/version.h"

#include <fmt/format.h>

#include "hdf5/library.h"

namespace lockstep::hdf5 {

std::string version() {
  start();
  unsigned major = 0, minor = 0, release = 0;
  return H5get_libversion(&major, &minor, &release) < 0 ? "unknown" : fmt::format("{}.{}.{}", major, minor, release);
}

}  // namespace lockstep::hdf5
