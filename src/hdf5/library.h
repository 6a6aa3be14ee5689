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

/// To be called before any function of HDF5.
///   - HDF5 must not close open files when the program exits: it crashes on a file that it failed to write (see
///     Writer). This program closes all others itself.
///   - HDF5 must not print its error stack: the innermost line becomes a part of our message instead.
void start();

struct Reason {
  std::string text;           // one line
  bool is_of_system = false;  // the text is that of an errno: "No space left on device"
};
/// The innermost description of HDF5's error stack, which is the actual cause.
Reason reason();

/// The code of an error that the system reported to HDF5, and of any other error of HDF5.
struct ErrorCodes {
  ErrorCode of_system, of_library;
};
/// Throws "PATH: DOING failed: REASON" if HDF5 returned an error.
Id check_id(hid_t id, ErrorCodes codes, const std::string& path, const std::string& doing);
void check(herr_t status, ErrorCodes codes, const std::string& path, const std::string& doing);

/// Properties for opening or creating a file, without locks: some cluster file systems do not support locks, data sets
/// are only read, and a new file gets its name when it is complete.
Id access_properties(const std::string& path);

}  // namespace lockstep::hdf5
