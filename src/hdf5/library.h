// The HDF5 library for the other files of this folder: ids that close themselves, and errors as one sentence.
// Only files in src/hdf5 include this header, since it includes HDF5's own.
#pragma once

#include <hdf5.h>

#include <string>

#include "lockstep/error.h"
#include "lockstep/handle.h"

namespace lockstep::hdf5 {

struct IdTraits {
  using Type = hid_t;
  static Type null() { return H5I_INVALID_HID; }
  static void close(Type id);
};
using Id = Handle<IdTraits>;

/// Stops HDF5 from printing its error stack; the innermost line becomes a part of our message instead.
void silence();
/// The innermost description of HDF5's error stack, which is the actual cause.
std::string reason();

/// Throws "PATH: DOING failed: REASON" if HDF5 returned an error.
Id check_id(hid_t id, ErrorCode code, const std::string& path, const std::string& doing);
void check(herr_t status, ErrorCode code, const std::string& path, const std::string& doing);

/// Properties for opening or creating a file, without locks: some cluster file systems have none, data sets are only
/// read, and a new file gets its name when it is complete.
Id access_properties(const std::string& path);

}  // namespace lockstep::hdf5
